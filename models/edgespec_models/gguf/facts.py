"""A GGUF header's facts as plain values: what the model is, how it remembers, what it cannot do.

Which architectures are recurrent, hybrid, or no generators of text is llama.cpp's knowledge
(src/llama-arch.cpp, src/llama-model.cpp); a header does not contain it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from edgespec_models.gguf.header import Header
from edgespec_models.gguf.vocabulary import why_no_vocabulary

Memory = Literal["attention", "sliding window", "hybrid", "recurrent"]

_RECURRENT = {"mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"}
_HYBRID = {
    "jamba", "falcon-h1", "plamo2", "granitehybrid", "lfm2", "lfm2moe", "nemotron_h", "nemotron_h_moe",
    "qwen3next", "kimi-linear", "bailingmoe3", "kimi-k3", "glm5-next", "qwen35", "qwen35moe", "qwen4exp",
    "deepseek4", "minimax-01",
}  # fmt: skip
_NO_GENERATOR = {
    "t5": "an encoder model",
    "t5encoder": "an encoder model",
    "clip": "the picture part of a model",
    "wavtokenizer-dec": "a speech model",
    "dream": "a diffusion model",
    "llada": "a diffusion model",
    "llada-moe": "a diffusion model",
    "rnd1": "a diffusion model",
    "llama-embed": "an embedding model",
    "gemma-embedding": "an embedding model",
    "eagle3": "an EAGLE-3 head, which cannot speak by itself",
    "dflash": "a DFlash head, which cannot speak by itself",
    "medusa": "a file of Medusa heads, which cannot speak by themselves",
    "gemma4-assistant": "a multi-token head of Gemma 4, which cannot speak by itself",
}


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A model in plain words."""

    name: str
    architecture: str
    size_label: str  # "0.6B"; "" if the file does not say
    quantisation: str  # "Q4_K_M"; "" if the file does not say
    n_ctx_train: int | None
    memory: Memory
    n_experts: int  # 0 for a dense model
    licence: str
    has_template: bool

    @property
    def memory_text(self) -> str:
        """Says how the model remembers, and whether it has experts."""
        return self.memory + (f", mixture of {self.n_experts} experts" if self.n_experts else "")


def facts_of(header: Header) -> ModelFacts:
    """Returns a header's facts about its model."""
    return ModelFacts(
        name=header.text("general.name") or header.text("general.basename"),
        architecture=header.architecture,
        size_label=header.text("general.size_label"),
        quantisation=_quantisation(header),
        n_ctx_train=header.of_architecture("context_length"),
        memory=_memory(header),
        n_experts=header.of_architecture("expert_count") or 0,
        licence=header.text("general.license"),
        has_template="tokenizer.chat_template" in header.metadata,
    )


def scaled_positions(header: Header) -> str:
    """Returns how a file says that its positions are scaled, in words; "" if they are not."""
    kind = header.text(f"{header.architecture}.rope.scaling.type", "none")
    factor = header.metadata.get(f"{header.architecture}.rope.scaling.factor")
    if kind == "none" or not isinstance(factor, int | float) or factor == 1:
        return ""
    before = header.of_architecture("rope.scaling.original_context_length")
    return f"{kind} RoPE scaling by {factor:g}" + (f" from {before:,}" if before else "")


def learned_positions(headers: Sequence[Header]) -> bool:
    """Returns whether a model learned a vector for each position, and so has none beyond them."""
    return any(tensor.name == "position_embd.weight" for header in headers for tensor in header.tensors)


def why_not_usable(header: Header) -> str | None:
    """Returns in plain words why the file cannot generate text; None if it can.

    llama.cpp has the last word when it loads the file; this finds what would be a wasted download.
    """
    if not header.architecture:
        return f"{header.name} names no architecture: it is not a language model"
    kind = header.text("general.type", "model")
    if kind != "model":
        return f"{header.name} is a file of type {kind!r}, not a model"
    if (header.number("split.no") or 0) != 0:
        return f"{header.name} is a later part of a split model: name the first part"
    what = _NO_GENERATOR.get(header.architecture)
    if what is None and header.flag(f"{header.architecture}.attention.causal") is False:
        what = "an embedding model"
    if what:
        return f"{header.name} is {what}: it does not generate text token by token"
    return why_no_vocabulary(header)


def _memory(header: Header) -> Memory:
    if header.architecture in _RECURRENT:
        return "recurrent"
    if header.architecture in _HYBRID:
        return "hybrid"
    return "sliding window" if header.of_architecture("attention.sliding_window") else "attention"


def _quantisation(header: Header) -> str:
    number = header.number("general.file_type")
    if number is None:
        return ""
    from gguf import LlamaFileType  # slow to import

    try:
        return LlamaFileType(number).name.removeprefix("MOSTLY_").removeprefix("ALL_")
    except ValueError:
        return ""
