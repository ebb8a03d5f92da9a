"""Numbers in a GGUF header that no model has.

A header is a stranger's text, and its numbers become loops, buffers and files: here, in llama.cpp, and in
the slices of `edgespec plan`. What exceeds these limits is damaged or hostile; each limit is
llama.cpp's own, or far above the largest model there is.
"""

import math
import re
from array import array
from collections.abc import Mapping

from edgespec_models.gguf.number_formats import FORMATS, n_bytes

LARGEST_ALIGNMENT = 1 << 16  # bytes; files have 32, and no memory page is larger
MOST_KEYS = 1 << 16
MOST_TENSORS = 1 << 17
MOST_TEXTS = 1 << 22  # strings in all lists; a vocabulary of 262,144 tokens has 777,000 with its merges
MOST_LAYERS = 512  # LLAMA_MAX_LAYERS
MOST_EXPERTS = 1024  # LLAMA_MAX_EXPERTS
LONGEST_NAME = 64  # characters of an architecture or a tensor: GGML_MAX_NAME
LARGEST_TENSOR = 1 << 44  # bytes

# graphs of llama.cpp's that rotate nothing, or not always: others end or never end on no dimensions to rotate
_UNROTATED = frozenset(
    "arwkv7 baichuan bloom glm5-next gpt2 granite granitehybrid granitemoe jais jamba kimi-k3 kimi-linear "
    "mamba mamba2 mpt nemotron_h nemotron_h_moe refact rwkv6 rwkv6qwen2 rwkv7 starcoder".split()
)
_ONE_IS_NONE = frozenset(("hunyuan-dense", "hunyuan_vl"))  # of experts: llama.cpp reads no number of them
_ARCHITECTURE = re.compile(r"[A-Za-z0-9_.-]*")
_OF_LAYERS = ("block_count", "nextn_predict_layers")
_OF_SIZES = (
    "full_attention_interval", "embedding_length", "feed_forward_length", "vocab_size",
    "attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.value_length",
    "attention.kv_lora_rank", "rope.dimension_count", "ssm.inner_size", "ssm.state_size", "ssm.group_count",
    "ssm.conv_kernel", "shortconv.l_cache",
)  # fmt: skip
_OF_EXPERTS = ("expert_count", "expert_used_count", "expert_group_count")
_OF_TOKENS = ("context_length", "attention.sliding_window")
_LARGEST = {
    **dict.fromkeys(_OF_LAYERS, MOST_LAYERS),
    **dict.fromkeys((*_OF_EXPERTS, "expert_group_used_count"), MOST_EXPERTS),
    **dict.fromkeys(_OF_SIZES, 1 << 24),
    **dict.fromkeys(_OF_TOKENS, (1 << 32) - 1),
}


def bad_number(metadata: Mapping[str, object]) -> str | None:
    """Returns in words which number or name of the metadata is impossible; None if none is."""
    architecture = metadata.get("general.architecture", "")
    if not isinstance(architecture, str) or not _ARCHITECTURE.fullmatch(architecture):
        return f"its architecture is named {_shown(architecture)}"
    if len(architecture) > LONGEST_NAME:
        return f"the name of its architecture has {len(architecture):,} characters"
    alignment = metadata.get("general.alignment", 1)
    if type(alignment) is not int or not 1 <= alignment <= LARGEST_ALIGNMENT or alignment & (alignment - 1):
        return f"its alignment is {_shown(alignment)}"
    for key, largest in _LARGEST.items():
        name = f"{architecture}.{key}"
        value = metadata.get(name, 0)
        listed = isinstance(value, array) and value.typecode not in "fd" and key not in _OF_LAYERS
        numbers = list(value) if listed and len(value) <= MOST_LAYERS else [value]  # type: ignore[call-overload, arg-type]
        if not all(type(number) is int and 0 <= number <= largest for number in numbers):
            return f"{name} is {_shown(value)}, and must be a whole number from 0 to {largest:,}"
    return _contradiction(architecture, metadata)


def _contradiction(architecture: str, metadata: Mapping[str, object]) -> str | None:
    """Returns an impossible combination on which llama.cpp aborts or never ends."""

    def of(key: str, default: int = 0) -> int:
        value = metadata.get(f"{architecture}.{key}", default)
        return max(value, default=0) if isinstance(value, array) else int(value)  # type: ignore[call-overload]

    layers, experts, used, groups = (of(key) for key in ("block_count", *_OF_EXPERTS))
    if of("block_count", 1) < 1:
        return f"{architecture}.block_count is 0"
    if of("rope.dimension_count", 1) < 1 and architecture not in _UNROTATED:
        return f"{architecture}.rope.dimension_count is 0"
    if architecture in _ONE_IS_NONE and experts <= 1:
        experts = used = groups = 0
    if of("nextn_predict_layers") > max(layers, 0):
        return f"{of('nextn_predict_layers')} of its {layers} layers guess further tokens"
    if used > experts or experts and not used:
        return f"{used:,} of its {experts:,} experts are used at once"
    chosen = of("expert_group_used_count")
    if groups > 1 and (groups >= experts or experts % groups or not 0 < chosen < groups):
        return f"its {experts:,} experts are in {groups:,} groups, {chosen:,} of them used at once"
    for name, value in metadata.items():
        if isinstance(value, float) and name.startswith(f"{architecture}."):
            if math.isnan(value) or name.endswith("epsilon") and not 0 <= value < math.inf:
                return f"{name} is {value}"
    return None


def bad_tensor(name: str, shape: tuple[int, ...], type_: int, room: int | None) -> str | None:
    """Returns in words why a tensor cannot be in its file; None if it can. room: bytes to the next one."""
    if len(name) > LONGEST_NAME:
        return f"the name of a tensor has {len(name):,} characters"
    if type_ not in FORMATS:  # readers of its bytes refuse it
        return None
    size = n_bytes(shape, type_, name)
    if size > (LARGEST_TENSOR if room is None else room):
        return f"tensor {_shown(name)} would take {size:,} bytes, which the file does not have"
    return None


def _shown(value: object) -> str:
    """Returns a readable value: the beginning of a long one."""
    if isinstance(value, array):
        return f"a list of {len(value):,} numbers" if len(value) > 4 else str(list(value))
    text = repr(value)
    return text if len(text) <= LONGEST_NAME else text[:LONGEST_NAME] + "..."
