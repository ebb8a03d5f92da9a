"""What every request for text has, in OpenAI's and llama-server's names, and the generations it stands for.

Unknown fields are ignored, because clients send many that mean nothing to a local model; a known field
with a wrong value is refused by name and value.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import Field, StrictBool, StrictStr

from edgespec.core.request import Request, Scoring
from edgespec.core.values import LONGEST_DRAFT, DrafterName
from edgespec.errors import SettingError
from edgespec.grammar.grammar import Grammar
from edgespec.pairs.adapters import Scales
from edgespec.protocol.messages import Prompt, Submit
from edgespec.sampling.settings import NUMBERS, Sampling, sampler_order, sampling_for
from edgespec.server.refusal import invalid, unsupported
from edgespec.server.requests.fields import (
    Biases,
    Fields,
    Listed,
    Number,
    Stops,
    Whole,
    with_numbers,
)
from edgespec.server.requests.structured import FormFields
from edgespec.server.settings import RequestDefaults

_P = TypeVar("_P")
MOST_CHOICES = 16
Seed = Annotated[Whole, Field(ge=-(2**63), lt=2**64)]
Top = Annotated[Whole, Field(ge=0, le=20)]


class StreamOptions(Fields):
    """What a stream contains besides the text."""

    include_usage: StrictBool = False


class Speculation(Fields):
    """The `edgespec` object: how to draft for this request, and what its stream reports."""

    speculation: StrictBool = True
    drafter: DrafterName | None = None
    draft_length: Annotated[Whole, Field(ge=0, le=LONGEST_DRAFT)] | None = None
    events: StrictBool = False
    lane: Annotated[StrictStr, Field(max_length=64)] = ""


class AdapterScale(Fields):
    """How much of a LoRA adapter is added. id: its place among the pair's."""

    id: Annotated[Whole, Field(ge=0)]
    scale: Annotated[Number, Field(ge=-1e6, le=1e6)] = 0.0


def scales_of(listed: Sequence[AdapterScale], now: Scales, *, param: str | None = "lora") -> Scales:
    """Returns the scale of each adapter, 0 of those not listed. now: the present ones. Raises Refusal."""
    given = {adapter.id: float(adapter.scale) for adapter in listed}
    wrong = next((i for i in given if i >= len(now)), None)
    if wrong is not None:
        has = f"{len(now)} adapters" if now else "no adapters"
        raise invalid(param, f"there is no LoRA adapter {wrong}: the model was loaded with {has} (--lora)")
    return tuple(given.get(i, 0.0) for i in range(len(now)))


class SharedFields(Fields):
    """What the other dialects have under the same names."""

    stream: StrictBool | None = None
    temperature: Number | None = None
    top_p: Number | None = None
    top_k: Whole | None = None
    min_p: Number | None = None
    edgespec: Speculation | None = None

    def shared(self, *others: str) -> dict[str, Any]:
        """Returns these fields, and others that are the same in a chat request."""
        return self.model_dump(include={*SharedFields.model_fields, *others}, exclude_none=True)


@with_numbers
class GenerationRequest(FormFields):
    """What chats and completions share."""

    limits: ClassVar[tuple[str, ...]] = ("max_tokens", "n_predict")  # fields of which the first given counts
    may_be_0: ClassVar[tuple[str, ...]] = ("n_predict",)

    model: StrictStr | None = None
    stream: StrictBool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[Whole, Field(ge=-1)] | None = None
    id_slot: Whole | None = None  # llama-server's: the slot that is wished for
    n_predict: Whole | None = None  # llama-server's name, which may be 0
    n: Annotated[Whole, Field(ge=1, le=MOST_CHOICES)] | None = None
    stop: Stops = None
    seed: Seed | None = None
    logit_bias: Biases[Number | Literal[False]] | None = None  # false: never, as llama-server has it
    dry_sequence_breakers: Listed[StrictStr] | None = None
    samplers: StrictStr | Listed[StrictStr] | None = None
    post_sampling_probs: StrictBool | None = None
    ignore_eos: StrictBool | None = None
    cache_prompt: StrictBool | None = None  # llama-server's: false reads the prompt anew
    timings_per_token: StrictBool | None = None
    return_progress: StrictBool | None = None
    lora: Annotated[Listed[AdapterScale], Field(max_length=64)] | None = None  # llama-server's
    edgespec: Speculation | None = None

    @cached_property
    def speculation(self) -> Speculation:
        return self.edgespec or Speculation()

    @property
    def usage_in_stream(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    def scoring(self) -> Scoring | None:
        """Returns which scores of tokens are wanted."""
        return None

    @property
    def _most(self) -> tuple[str, int | None]:
        given = ((name, getattr(self, name)) for name in self.limits)
        return next(((name, most) for name, most in given if most is not None), ("", None))

    def limit(self) -> int | None:
        """Returns how many tokens may come; None for what fits (as -1 says, too)."""
        name, most = self._most
        if most == 0 and not self.warms_up:
            raise invalid(name, f"{name} is 0: it must be 1 or more")
        return None if most is None or most < 0 else max(1, most)

    @property
    def says_limit(self) -> bool:
        """True if a number of tokens is given."""
        return self._most[1] is not None

    @cached_property
    def warms_up(self) -> bool:
        """True if nothing is to be generated: only the prompt is read, for a request that comes soon."""
        name, most = self._most
        return most == 0 and name in self.may_be_0

    def counted(self, prompts: list[_P]) -> list[_P]:
        """Returns the prompts; raises Refusal for none, or too many."""
        if not 0 < len(prompts) * (self.n or 1) <= MOST_CHOICES:
            sentence = f"there are {len(prompts)} prompts: 1 to {MOST_CHOICES} answers may be asked for"
            raise invalid("prompt", sentence)
        return prompts

    def sampling(self, of_model: Mapping[str, str]) -> Sampling:
        """Returns the requested sampling, over the model's own settings over the defaults; raises Refusal."""
        wanted: dict[str, object] = {name: getattr(self, name) for name in NUMBERS}
        if wanted["top_k"] == -1:  # several servers write "no limit" so
            wanted["top_k"] = 0
        biases = self.logit_bias or {}
        try:
            bias = {int(token): -math.inf if x is False else float(x) for token, x in biases.items()}
        except ValueError:
            named = next(iter(biases))
            raise invalid("logit_bias", f"logit_bias names {named!r}: token ids are whole numbers") from None
        breakers = self.dry_sequence_breakers
        wanted["dry_sequence_breakers"] = None if breakers is None else tuple(breakers)
        try:
            if self.samplers is not None:
                wanted["samplers"] = sampler_order(self.samplers)
            return sampling_for(of_model, **wanted, logit_bias=bias or None)
        except SettingError as error:
            every = ("samplers", *NUMBERS, "logit_bias", "dry_sequence_breakers")
            wrong = next((name for name in every if re.search(rf"\b{name}\b", str(error))), "")
            given = self.given_as(wrong)
            sentence = str(error).replace(wrong, given, 1) if wrong else str(error)
            raise invalid(given or None, sentence) from None

    def given_as(self, name: str) -> str:
        """Returns the name that the client gave a field, if it has several."""
        return name

    def submits(
        self,
        prompt: Prompt,
        *,
        add_bos: bool,
        defaults: RequestDefaults,
        shown: tuple[str, ...] = (),
        stops: tuple[str, ...] = (),
        form: Grammar | None = None,
    ) -> list[Submit]:
        """Returns the generations of one prompt, `n` of them. defaults: the defaults.

        shown, stops: control tokens to show, and stop strings besides the request's own. form: of the
        answer, in place of the request's.
        """
        sampling, how, scoring = self.sampling(defaults.sampling), self.speculation, self.scoring()
        form = form or self.form()
        if self.ignore_eos and form:
            raise unsupported("ignore_eos", "structured output has an end: leave out ignore_eos, or the form")
        limit = self.limit()
        if limit is None and not self.says_limit:
            limit = defaults.max_tokens
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        anew = self.seed == -1  # llama.cpp's word for "every time"
        seed = defaults.seed if self.seed is None else None if anew else self.seed
        request = Request(
            sampling=sampling,
            max_tokens=limit,
            stop=(*stop, *stops),
            seed=seed,
            drafter=(how.drafter or defaults.drafter) if how.speculation else "none",
            draft_length=how.draft_length,
            scoring=scoring,
            grammar=form,
            shown=shown,
            ignore_eos=bool(self.ignore_eos),
            fresh=defaults.fresh if self.cache_prompt is None else not self.cache_prompt,
            adapters=scales_of(self.lora, defaults.adapters) if self.lora else defaults.adapters,
            slot=self.id_slot,
            lane=how.lane,
        )
        return [
            Submit("", prompt, add_bos, replace(request, choice=choice), how.events or scoring is not None)
            for choice in range(self.n or 1)
        ]
