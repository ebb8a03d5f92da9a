"""What evaluating a model reads: its matrices, from the headers of its files alone."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from edgespec_models.gguf.header import Header, Tensor
from edgespec_models.gguf.number_formats import n_bytes

OUTPUT = ("output.weight", "token_embd.weight")  # rows that make logits: the embedding's, if these are tied
BLOCK = re.compile(r"blk\.(\d+)\.")


@dataclass(frozen=True, slots=True)
class Matrix:
    """One that every evaluation reads. experts: how many it consists of; used: how many a token needs."""

    type: int  # ggml's number of the format
    size: int  # bytes
    experts: int = 1
    used: int = 1
    name: str = ""


def matrices_of(headers: Sequence[Header]) -> tuple[Matrix, ...]:
    """Returns what a model reads, without blocks that only guess. Raises UnknownFormatError."""
    tensors = [t for t in _tensors(headers) if t.name not in OUTPUT and _block(t) < _layers(headers[0])]
    return tuple(_matrices(headers[0], [*tensors, *_output(headers)]))


def matrices_of_head(target: Sequence[Header], draft: Sequence[Header] | None) -> tuple[Matrix, ...]:
    """Returns what one guess of a head reads. draft: the head's file; None: it is in the target's.

    Of several MTP blocks each guess takes one. Raises UnknownFormatError.
    """
    if draft:
        tensors = [t for t in _tensors(draft) if t.name not in OUTPUT and t.name != "d2t"]
    else:
        tensors = [t for t in _tensors(target) if _block(t) == _layers(target[0])]
    output = (_output(draft) if draft else ()) or _output(target)
    return tuple(_matrices((draft or target)[0], [*tensors, *output]))


def _layers(header: Header) -> int:
    extra = header.of_architecture("nextn_predict_layers", 0) or 0  # layers that only guess further tokens
    return (header.of_architecture("block_count", 0) or 0) - extra


def _tensors(headers: Sequence[Header]) -> Iterator[Tensor]:
    return (tensor for header in headers for tensor in header.tensors)


def _block(tensor: Tensor) -> int:
    found = BLOCK.match(tensor.name)
    return int(found[1]) if found else -1


def _output(headers: Sequence[Header]) -> tuple[Tensor, ...]:
    found = {tensor.name: tensor for tensor in _tensors(headers) if tensor.name in OUTPUT}
    return next(((found[name],) for name in OUTPUT if name in found), ())


def _matrices(header: Header, tensors: Iterable[Tensor]) -> Iterator[Matrix]:
    """Yields the tensors with more than one dimension; a mixture's experts lie in one tensor."""
    experts = header.of_architecture("expert_count", 0) or 0
    used = header.of_architecture("expert_used_count", 0) or 0
    for tensor in tensors:
        if len(tensor.shape) > 1:
            mixed = "_exps." in tensor.name and 0 < used <= experts
            size = n_bytes(tensor.shape, tensor.type, tensor.name)
            yield Matrix(tensor.type, size, *((experts, used) if mixed else (1, 1)), tensor.name)
