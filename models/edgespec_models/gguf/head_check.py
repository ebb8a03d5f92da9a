"""Can a head run for a target? Finds in headers what llama.cpp would abort on."""

import struct
from collections.abc import Sequence
from pathlib import Path

from edgespec_models.gguf.header import Header, HeaderError
from edgespec_models.gguf.heads import Head, head_of, heads_in_cache, number, weighs, windows
from edgespec_models.gguf.vocabulary import mismatch, vocabulary_of

# Architectures for which llama.cpp builds a graph of MTP blocks, and whether of several (src/models).
_MTP = {
    "bailingmoe3": False, "cohere2moe": False, "deepseek2": False, "deepseek32": False, "deepseek4": False,
    "glm-dsa": False, "glm4moe": False, "glm5-next": False, "hy_v3": True, "mimo2": True,
    "nemotron_h_moe": False, "qwen35": False, "qwen35moe": False, "qwen3next": False, "step35": True,
}  # fmt: skip
# Architectures of which llama.cpp shows the inputs of layers.
_TAPPED = {
    "bailingmoe3", "deepseek4", "gemma4", "gpt-oss", "hunyuan_vl", "lfm2", "lfm2moe", "llama", "mimo2",
    "minimax-01", "minimax-m2", "nanbeige", "nemotron_h", "nemotron_h_moe", "qwen3", "qwen35", "qwen35moe",
    "qwen3moe", "qwen3next", "qwen4exp",
}  # fmt: skip
_ASSISTED = "gemma4"  # the architecture of an assistant's target
LARGEST_BLOCK = 64
MOST_HEADS = 16
F32, I64 = 0, 27  # ggml's numbers of types
_JOINING = ("nextn.eh_proj", "nextn.enorm", "nextn.hnorm")  # what every MTP block has

_OF_MIMO = ("attn_qkv", "ffn_gate", "ffn_up", "ffn_down")


def shows_layers(target: Header) -> bool:
    """Whether llama.cpp shows the inputs of a target's layers, which EAGLE-3 and DFlash heads read."""
    return target.architecture in _TAPPED


def own_head(headers: Sequence[Header]) -> tuple[Head | None, str | None]:
    """Returns the head in a target's own file, and why it cannot run, if so; (None, None): no head."""
    head = head_of(headers)
    if head is None or head.alone:
        return None, None
    return head, why_not_driven(head, headers, headers)


def guessing_head(target: Sequence[Header], draft: Sequence[Header] | None) -> Head | None:
    """Returns the head that guesses in a pair, if one does."""
    if draft:
        head = head_of(draft)
        return head if head and head.alone else None
    own, why_not = own_head(target)
    return None if why_not else own


def why_not_driven(head: Head, headers: Sequence[Header], target: Sequence[Header]) -> str | None:
    """Returns why a head cannot guess for a target, in a clause; None if it can.

    headers: of the head's file; target: of the target's, which may be the same.
    """
    if head.kind == "mtp":
        return _why_no_mtp(head, headers) or (_why_no_sidecar(headers[0], target[0]) if head.alone else None)
    if head.kind == "assistant":
        return _why_no_assistant(headers[0], target[0])
    if head.kind == "medusa":
        return _why_no_medusa(head, headers[0], target[0])
    if head.kind == "eagle3":
        return _why_no_eagle(head, headers[0], target[0])
    return _why_no_dflash(head, headers[0], target[0])


def _why_no_mtp(head: Head, headers: Sequence[Header]) -> str | None:
    architecture = headers[0].architecture
    if architecture not in _MTP:
        return f"llama.cpp runs no MTP blocks of {architecture}"
    if head.n_blocks > 1 and not _MTP[architecture]:
        return f"it has {head.n_blocks} MTP blocks, and llama.cpp runs one of {architecture}"
    names = {tensor.name for header in headers for tensor in header.tensors}
    layers = headers[0].of_architecture("block_count") or 0
    wanted = (*_JOINING, "attn_norm", *(_OF_MIMO if architecture == "mimo2" else ()))
    for il in range(layers - head.n_blocks, layers):
        for name in wanted:
            if f"blk.{il}.{name}.weight" not in names:
                return f"its MTP block lacks the tensor blk.{il}.{name}.weight"
    return None


def _why_no_sidecar(head: Header, target: Header) -> str | None:
    if head.architecture != target.architecture:
        return (
            f"it is made for an architecture {head.architecture}, and the target's is {target.architecture}"
        )
    return _why_of_another_size(head, target, "embedding_length") or mismatch(
        vocabulary_of(target), vocabulary_of(head)
    )


def _why_of_another_size(head: Header, target: Header, key: str) -> str | None:
    wide, wanted = head.of_architecture(key), target.of_architecture("embedding_length")
    if wide == wanted:
        return None
    return f"it reads hidden states of {wide or 0:,} numbers, and the target's have {wanted or 0:,}"


def _why_no_medusa(facts: Head, head: Header, target: Header) -> str | None:
    """Numpy reads the weights as they are in the file."""
    if not 1 <= facts.n_blocks <= MOST_HEADS:
        return f"it has {facts.n_blocks} Medusa heads, and 1 to {MOST_HEADS} can be run"
    if why := _why_of_another_size(head, target, "embedding_length"):
        return why
    if why := mismatch(vocabulary_of(target), vocabulary_of(head)):
        return why
    own = {tensor.name: tensor for tensor in head.tensors}
    width, n_vocab = number(head, "embedding_length"), len(vocabulary_of(head).texts)
    rows = own["d2t"].shape[0] if "d2t" in own and own["d2t"].shape else n_vocab
    wanted: dict[str, tuple[int, ...]] = {"output.weight": (width, rows)}
    for i in range(facts.n_blocks):
        wanted |= {f"head.{i}.weight": (width, width), f"head.{i}.bias": (width,)}
    for name, shape in wanted.items():
        if name not in own or own[name].type != F32 or own[name].shape != shape or rows > n_vocab:
            return f"its tensor {name} is not {' x '.join(map(str, shape))} floats of 32 bits"
    return None


def _why_no_assistant(head: Header, target: Header) -> str | None:
    """An assistant reads the target's last two layers of the cache, as if they were its own."""
    if target.architecture != _ASSISTED:
        return f"it reads the cache of a {_ASSISTED}, and the target's architecture is {target.architecture}"
    if why := _why_of_another_size(head, target, "embedding_length_out"):
        return why
    if head.of_architecture("embedding_length") == head.of_architecture("embedding_length_out"):
        return "its hidden states are as wide as the target's, which llama.cpp does not run"
    if head.of_architecture("nextn_predict_layers") != head.of_architecture("block_count"):
        return "its file does not say that all its layers guess"
    if windows(target)[-2:] != [True, False]:
        return "the last layers of the target are not one that sees a window and one that sees all"
    for sees_window, layer in ((True, -2), (False, -1)):
        wanted = heads_in_cache(target)[layer : layer + 1 or None]
        read = {n for n, of in zip(heads_in_cache(head), windows(head), strict=False) if of == sees_window}
        if read - set(wanted):
            return f"it reads {max(read)} heads of the cache where the target has {wanted[0]}"
    for key in ("key_length", "value_length", "key_length_swa", "value_length_swa"):
        name = f"attention.{key}"
        if head.of_architecture(name) != target.of_architecture(name):
            return (
                f"its {key} is {head.of_architecture(name)}, and the target's {target.of_architecture(name)}"
            )
    return mismatch(vocabulary_of(target), vocabulary_of(head))


def _why_no_dflash(facts: Head, head: Header, target: Header) -> str | None:
    n_vocab = len(vocabulary_of(head).texts)
    if not 2 <= facts.block <= LARGEST_BLOCK:
        return f"its block has {facts.block} tokens, and 2 to {LARGEST_BLOCK} can be run"
    if not 0 <= facts.mask < n_vocab:
        return "its file names no mask token"
    if weighs(head) and (why := _why_no_lattice(facts, head)):
        return why
    if not facts.layers:
        return "its file does not say which layers of the target it reads"
    if head.of_architecture("key_length") != head.of_architecture("value_length"):
        return "its keys and values differ in length, which llama.cpp does not run"
    return (
        _why_not_tapped(facts, target)
        or _why_of_another_size(head, target, "embedding_length")
        or mismatch(vocabulary_of(target), vocabulary_of(head))
    )


def _why_no_lattice(facts: Head, head: Header) -> str | None:
    """A DFlash2 head returns its candidates, and a weight for each two of them, in one hidden row."""
    d, group = number(head, "embedding_length"), number(head, "conv_group_size")
    if not (
        facts.candidates and group and number(head, "selector_rank") and number(head, "conv_kernel_size")
    ):
        return "its file does not say how its candidates are weighed"
    if d % group or d < facts.candidates * (facts.candidates + 1):
        return f"its hidden states of {d} numbers have no room for {facts.candidates} candidates"
    return None


def _why_no_eagle(facts: Head, head: Header, target: Header) -> str | None:
    if facts.n_blocks != 1:
        return f"it has {facts.n_blocks} layers, and an EAGLE-3 head has one"
    if head.of_architecture("key_length") != head.of_architecture("value_length"):
        return "its keys and values differ in length, which llama.cpp does not run"
    if len(facts.layers) != 3:
        return f"it reads {len(facts.layers)} layers of its target, and an EAGLE-3 head reads three"
    if why := _why_not_tapped(facts, target):
        return why
    if why := _why_of_another_size(head, target, "target_hidden_size"):
        return why
    shapes = {tensor.name: tensor.shape for tensor in head.tensors}
    if "token_embd.weight" not in shapes and (why := _why_of_another_size(head, target, "embedding_length")):
        return why
    return mismatch(vocabulary_of(target), vocabulary_of(head))


def _why_not_tapped(facts: Head, target: Header) -> str | None:
    if target.architecture not in _TAPPED:
        return f"llama.cpp does not show what goes into the layers of {target.architecture}"
    n_layers = (target.of_architecture("block_count") or 0) - (
        target.of_architecture("nextn_predict_layers") or 0
    )
    if not all(0 <= layer < n_layers for layer in facts.layers):
        return f"it reads layer {max(facts.layers)} of its target, and this one has {n_layers}"
    return None


def bad_ids(path: Path, head: Header) -> str | None:
    """Returns what is wrong with the table of a smaller vocabulary in a head's file, in a clause, or None.

    llama.cpp aborts on an id that does not exist. Raises HeaderError if the file is cut short.
    """
    table = next((tensor for tensor in head.tensors if tensor.name == "d2t"), None)
    if table is None:
        return None
    if table.type != I64 or len(table.shape) != 1:
        return "its table of token ids (d2t) is no list of whole numbers"
    n = table.shape[0]
    with open(path, "rb") as file:
        file.seek(len(head.raw) + table.offset)
        ids = file.read(8 * n)
    if len(ids) < 8 * n:
        raise HeaderError(f"{path} ends in the middle: download it again")
    n_vocab = len(vocabulary_of(head).texts)
    wrong = next((token for (token,) in struct.iter_unpack("<q", ids) if not 0 <= token < n_vocab), None)
    return None if wrong is None else f"its table of token ids (d2t) names token {wrong} of {n_vocab:,}"
