"""What evaluating a model reads: the bytes of its matrices, by number format, from its header alone."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from edgespec_models.gguf.header import Header, Tensor
from edgespec_models.gguf.number_formats import n_bytes

OUTPUT = (
    "output.weight",
    "token_embd.weight",
)  # the rows that make logits: the embedding's, if these are tied
BLOCK = re.compile(r"blk\.(\d+)\.")


@dataclass(frozen=True, slots=True)
class Matrix:
    """One that every evaluation reads. experts: how many it consists of; used: how many a token needs."""

    type: int  # ggml's number of the format
    size: int  # bytes
    experts: int = 1
    used: int = 1
    name: str = ""


@dataclass(frozen=True, slots=True)
class Reading:
    """What one evaluation reads. layers: after each other."""

    matrices: tuple[Matrix, ...]
    layers: int
    width: int  # of the model's states

    @property
    def types(self) -> dict[int, int]:
        """The number formats, with the bytes of each."""
        sizes: dict[int, int] = {}
        for matrix in self.matrices:
            sizes[matrix.type] = sizes.get(matrix.type, 0) + matrix.size
        return sizes


def reading_of(headers: Sequence[Header]) -> Reading:
    """Returns what a model reads, without blocks that only guess. Raises UnknownFormatError."""
    layers = _layers(headers[0])
    tensors = [t for t in _tensors(headers) if t.name not in OUTPUT and _number(t, -1) < layers]
    return Reading(tuple(_matrices(headers[0], [*tensors, *_output(headers)])), layers, _width(headers))


def reading_of_head(target: Sequence[Header], draft: Sequence[Header] | None) -> Reading:
    """Returns what one guess of a head reads. draft: the head's file; None: it is in the target's.

    Of several MTP blocks each guess takes one. Raises UnknownFormatError.
    """
    output = (_output(draft) if draft else ()) or _output(target)
    if draft:
        tensors = [t for t in _tensors(draft) if t.name not in OUTPUT and t.name != "d2t"]
        layers = max(1, draft[0].of_architecture("block_count", 1) or 1)
    else:
        first, layers = _layers(target[0]), 1
        tensors = [t for t in _tensors(target) if _number(t, -1) == first]
    return Reading(tuple(_matrices((draft or target)[0], [*tensors, *output])), layers, _width(target))


def _width(headers: Sequence[Header]) -> int:
    return headers[0].of_architecture("embedding_length", 1) or 1


def _layers(header: Header) -> int:
    extra = header.of_architecture("nextn_predict_layers", 0) or 0  # layers that only guess further tokens
    return (header.of_architecture("block_count", 0) or 0) - extra


def _tensors(headers: Sequence[Header]) -> Iterator[Tensor]:
    return (tensor for header in headers for tensor in header.tensors)


def _number(tensor: Tensor, outside: int) -> int:
    found = BLOCK.match(tensor.name)
    return int(found[1]) if found else outside


def _output(headers: Sequence[Header]) -> tuple[Tensor, ...]:
    found = {tensor.name: tensor for tensor in _tensors(headers) if tensor.name in OUTPUT}
    return next(((found[name],) for name in OUTPUT if name in found), ())


def _matrices(header: Header, tensors: Sequence[Tensor]) -> Iterator[Matrix]:
    """Yields the tensors with more than one dimension; a mixture's experts lie in one tensor."""
    experts = header.of_architecture("expert_count", 0) or 0
    used = header.of_architecture("expert_used_count", 0) or 0
    for tensor in tensors:
        if len(tensor.shape) > 1:
            size = n_bytes(tensor.shape, tensor.type, tensor.name)
            mixed = "_exps." in tensor.name and 0 < used <= experts
            yield Matrix(tensor.type, size, *((experts, used) if mixed else (1, 1)), tensor.name)
