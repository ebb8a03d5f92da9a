"""What clients of llama.cpp's own server ask for: /completion, /infill, /tokenize, /detokenize."""

from typing import Annotated, Any, ClassVar, Self

from pydantic import (
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    model_validator,
)

from edgespec.core.request import Scoring
from edgespec.sampling.settings import NUMBERS
from edgespec.server.filling import GapFields
from edgespec.server.refusal import unsupported
from edgespec.server.requests.fields import Biases, Fields, Listed, TokenId, Whole
from edgespec.server.requests.generation import GenerationRequest

ALIASES = {number.also: name for name, number in NUMBERS.items() if number.also}
ALIASES |= {"n_cmpl": "n", "logprobs": "n_probs", "logit_bias": "llama_bias"}
Bias = StrictInt | StrictFloat | StrictBool
Pair = tuple[StrictInt | StrictStr, Bias]


class JsonPrompt(Fields):
    """A prompt in an object, which may carry pictures and sounds."""

    prompt_string: StrictStr
    multimodal_data: Listed[StrictStr] | StrictStr | None = None


Prompt = StrictStr | JsonPrompt | Listed[TokenId | StrictStr]


class LlamaGenerationRequest(GenerationRequest):
    """What /completion and /infill share.

    The limit of tokens has three names. Below 0 it is what fits: llama.cpp's -1 (no limit) and -2 (until
    the context is full) are one here, where no context is shifted.
    """

    limits: ClassVar = ("max_tokens", "n_predict", "max_completion_tokens")
    may_be_0: ClassVar = limits

    max_tokens: Whole | None = None
    max_completion_tokens: Whole | None = None
    n_probs: Annotated[Whole, Field(ge=0, le=100)] | None = None
    return_tokens: StrictBool | None = None
    response_fields: Annotated[Listed[StrictStr], Field(max_length=1000)] | None = None
    t_max_predict_ms: Whole | None = None
    n_indent: Annotated[Whole, Field(ge=0)] | None = None
    llama_bias: Biases[Bias] | Listed[Pair] | None = None  # `logit_bias` of the request
    mirostat: Whole | None = None
    adaptive_target: StrictInt | StrictFloat | None = None
    image_data: Listed[Any] | None = None

    _given_as: dict[str, str] = PrivateAttr(default_factory=dict)  # by our names of fields

    @model_validator(mode="wrap")
    @classmethod
    def _own_names(cls, given: Any, read: ModelWrapValidatorHandler[Self]) -> Self:
        """Maps other names of a field to the one used here."""
        if not isinstance(given, dict):
            return read(given)
        named, given_as = dict(given), {}
        for other, name in ALIASES.items():
            if other in named:
                value = named.pop(other)
                if name not in named:
                    named[name], given_as[name] = value, other
        made = read(named)
        made._given_as = given_as
        return made

    def given_as(self, name: str) -> str:
        return self._given_as.get(name, name)

    def check(self) -> None:
        """Refuses what would silently be ignored."""
        for name, wanted, instead in (
            ("mirostat", self.mirostat, "use top_p or min_p"),
            ("adaptive_target", (self.adaptive_target or -1) >= 0, "use min_p"),
            ("image_data", self.image_data, "this model reads text only"),
        ):
            if wanted:
                raise unsupported(name, f"it is not supported: leave it out, or {instead}")

    def scoring(self) -> Scoring | None:
        return Scoring(self.n_probs, bool(self.post_sampling_probs)) if self.n_probs else None

    def biased(self) -> list[tuple[int | str, float]]:
        """Returns the biases: of token ids, and of texts that stand for their tokens."""
        given = self.llama_bias
        pairs = given.items() if isinstance(given, dict) else given or []
        return [(_token(token), float("-inf") if bias is False else float(bias)) for token, bias in pairs]


class LlamaCompletion(LlamaGenerationRequest):
    """POST /completion. prompt: one, or several."""

    prompt: Prompt | Listed[Prompt]

    def prompts(self) -> list[Prompt]:
        """Returns the prompts one by one. A list with token ids in it is one prompt. Raises Refusal."""
        given = self.prompt
        if not isinstance(given, list):
            return [given]
        if any(isinstance(item, int) for item in given):
            return [[item for item in given if isinstance(item, int | str)]]
        return self.counted([item for item in given if not isinstance(item, int)])


class InfillRequest(LlamaGenerationRequest, GapFields):
    """POST /infill."""


class SlotFile(Fields):
    """POST /slots/N. filename: in the folder of --slot-save-path."""

    filename: Annotated[StrictStr, Field(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9_. -]{0,199}$")] | None = None


class TokenizeRequest(Fields):
    """POST /tokenize."""

    model: StrictStr | None = None
    content: StrictStr | Listed[TokenId | StrictStr] = ""
    add_special: StrictBool = False
    parse_special: StrictBool = True
    with_pieces: StrictBool = False


class DetokenizeRequest(Fields):
    """POST /detokenize."""

    model: StrictStr | None = None
    tokens: Listed[TokenId] = []


def _token(given: int | str) -> int | str:
    return int(given) if isinstance(given, str) and given.strip().lstrip("-").isdigit() else given
