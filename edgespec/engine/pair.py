"""One loaded pair: models, contexts, and generation from a prompt to rounds."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgespec.chat import template as chat
from edgespec.chat.well_known import template_or_fallback
from edgespec.core.attachment import Attachment, Mixed
from edgespec.core.loop import Scorer
from edgespec.core.pace.costs import Costs, unmeasured
from edgespec.core.request import Request
from edgespec.core.stream import Stream
from edgespec.core.values import LONGEST_DRAFT, ModelName, Round
from edgespec.engine.alone import alone
from edgespec.engine.draft_placement import DraftPlacement
from edgespec.engine.experience import load, save
from edgespec.engine.loading import OnProgress, PairFiles, load_what_fits
from edgespec.engine.measuring import (
    SecondLook,
    believable,
    costs_path,
    measure_costs,
    note_places,
    time_again,
)
from edgespec.engine.media_opening import open_media_reader
from edgespec.engine.media_reader import Piece
from edgespec.engine.stream_maker import StreamMaker
from edgespec.errors import EngineError, SettingError
from edgespec.llama.devices import cards, place_of
from edgespec.llama.heads.guessing import DraftContext
from edgespec.llama.medium import Medium
from edgespec.pairs.adapters import Scales, scales_for
from edgespec.pairs.check import check_lora, check_pair, check_placement, find_head, headers_of
from edgespec.pairs.rope import beyond_trained
from edgespec.pairs.settings import PairSettings
from edgespec.protocol.media_marks import mixed
from edgespec.system.closing import Closing
from edgespec.system.other_programs import Others

MOST_ROWS = 63  # in one evaluation of several sequences: from 64 on, flash attention takes another kernel


class Pair(Closing):
    """A target and, if there is one, its draft. Use it in a `with`, or close it.

    `generate` makes one text at a time; `stream` prepares one for an `Engine` with several. Raises
    the errors of Model and Context, and PairMismatchError before any weights are loaded.
    """

    def __init__(
        self,
        target: str | os.PathLike[str],
        draft: str | os.PathLike[str] | None = None,
        settings: PairSettings | None = None,
        *,
        on_progress: OnProgress = lambda stage, progress: None,
    ) -> None:
        """on_progress: called with the current stage and the part of the whole that is done, 0 to 1."""
        settings = settings or PairSettings()
        head = find_head(target, draft) if draft is not None or settings.head else None
        self.translation = check_pair(target, draft) if draft is not None and head is None else None
        small = Path(draft) if draft is not None else None
        check_placement(target, settings.placement)
        check_lora(target, settings.adapters)
        if small:
            check_placement(small, settings.draft_placement)
        self.n_rows = LONGEST_DRAFT + 1 if settings.slots == 1 else MOST_ROWS
        place = DraftPlacement(Path(target), None if head else small, settings, cards())
        known = place.known()
        if known == 0:  # else on the card, if it fits
            settings = replace(settings, draft_gpu_layers=0)
        with ExitStack() as opened:
            self.media, self.no_media = open_media_reader(opened, Path(target), settings)
            files = PairFiles(Path(target), small, head, self.translation)
            if self.media:
                files = replace(files, medium=self.media.at_once, encoding=self.media.buffers)
            loaded, settings, self.gave_up = load_what_fits(opened, files, settings, self.n_rows, on_progress)
            if known is None:
                loaded, settings = place.choose(opened, loaded, settings, self.translation)
            self.settings, self.draft = settings, loaded.draft
            self.target_context, guessing = loaded.target_context, loaded.draft_context
            if self.media:
                self.target_context.media = self.media.by_cell
            elsewhere = (settings.rpc, settings.tensor_split, settings.n_gpu_layers) if settings.rpc else ()
            self.known_in = costs_path(self.target_context, guessing, elsewhere)
            self.target, self.n_ctx = loaded.target, self.target_context.n_ctx
            self.head, self.draft_context = head if guessing else None, guessing
            self.known = load(self.known_in)  # what is learned of it
            self.streams = StreamMaker(self.target, self.n_ctx, guessing, self.head, self.known)
            self._opened = opened.pop_all()
        self._costs_checked = False
        self._second_look: SecondLook | None = None

    def close(self) -> None:
        """Saves what was learned of the pair, and frees models and caches."""
        if self.settings.remember:
            save(self.known_in, self.known)
            if not self.settings.cache_disk:  # prompts on disk are of no use with another kind of attention
                self.target_context.keep_others()
        self._opened.close()

    @property
    def draft_name(self) -> str | None:
        """What guesses besides the text itself: the draft's name, or the head in the target's file."""
        return self.draft.path.stem if self.draft else self.head.name if self.head else None

    @property
    def reads(self) -> tuple[str, ...]:
        """Returns which kinds of media it reads."""
        if self.media is None:
            return ()
        return ("picture",) * self.media.sees + ("sound",) * self.media.hears

    @property
    def place(self) -> str:
        """Which graphics cards evaluate, in words; "" if the processor does all of it."""
        where = place_of(self.target, self.draft)
        kept = self.settings.placement.kept_experts(headers_of(self.target.path)) if where else ""
        return f"{where}; {kept}" if kept else where

    @property
    def beyond_trained(self) -> str | None:
        """A warning if the context is longer than what the target can be expected to read."""
        rope = self.settings.rope
        return beyond_trained(self.target.path.name, self.n_ctx, self.target.n_ctx_train, rope)

    @property
    def cells(self) -> int:
        """Tokens that all sequences may hold together."""
        return self.target_context.settings.cells or self.n_ctx * self.slots

    @property
    def slots(self) -> int:
        """Sequences that the contexts hold."""
        return self.settings.slots

    def busy(self) -> tuple[float, float]:
        """Returns the seconds spent so far inside llama.cpp: (draft, target)."""
        draft = self.draft_context.seconds if self.draft_context else 0.0
        return draft, self.target_context.seconds

    @property
    def decodes(self) -> int:
        """Evaluations of the target so far."""
        return self.target_context.calls

    def costs(self) -> Costs:
        """Returns what evaluations cost here: stored figures if they hold, else measured in a second."""
        contexts = self.target_context, self.draft_context
        if not self._costs_checked:
            try:
                if self.known.costs is None or not believable(self.known.costs, *contexts):
                    self.known.costs = measure_costs(*contexts)
                else:
                    note_places(self.known.costs, *contexts)
                    time_again(self.known.costs, *contexts)
            except EngineError:  # if it was the target, it fails again; else guessing may end, not loading
                self.known.costs = measure_costs(*contexts, draft_fails=True)
            self._costs_checked = True
            save(self.known_in, self.known)
        assert self.known.costs is not None
        return self.known.costs

    def look_again(self) -> bool:
        """Times one size again, while nobody waits; False if there is nothing left to time."""
        if self._second_look is None:
            self._second_look = SecondLook(self.target_context, self.costs(), Others(children=False).cores)
        try:
            return self._second_look.take()
        except EngineError:  # nobody waits for it
            return False

    @property
    def contexts(self) -> dict[ModelName, DraftContext]:
        """The contexts of the target and, if there is one, the draft."""
        contexts: dict[ModelName, DraftContext] = {"target": self.target_context}
        if self.draft_context:
            contexts["draft"] = self.draft_context
        return contexts

    def forget(self) -> None:
        """Forgets all texts, so that a generation can be repeated evaluation for evaluation.

        Learned costs and acceptance stay.
        """
        for context in self.contexts.values():
            for seq in range(self.slots):
                context.clear(seq)
        self.streams.forget()

    def scales(self, request: Request) -> Scales:
        """Returns the scale of each LoRA adapter for a request. Raises SettingError for another number."""
        return scales_for(request.adapters, self.settings.scales)

    def adapt(self, scales: Scales) -> None:
        """Has the target evaluate with adapters in these scales; what it holds stays as it was read."""
        self.target_context.adapt(scales)

    def _adapt(self, request: Request) -> None:
        """Has the target evaluate with the adapters of a request; what it read with others is forgotten."""
        scales = self.scales(request)
        if scales != self.target_context.adapters:
            self.adapt(scales)
            for seq in range(self.slots):
                self.target_context.clear(seq)

    def prompt_tokens(self, text: str, *, special: bool = False) -> NDArray[np.int32]:
        """Returns the tokens of a text: (n,) int32. special: control tokens spelt out in it count as such."""
        return self.target.tokenize(text.encode("utf-8", "replace"), special=special)

    def media_pieces(self, attachment: Attachment) -> tuple[Piece, ...]:
        """Returns what stands for a medium in a prompt. Raises SettingError."""
        if self.media is None:
            raise SettingError(
                f"{self.target.path.stem} was loaded without a projector, so it reads no {attachment.kind}s: "
                "name the projector's file with --mmproj"
            )
        return self.media.pieces(attachment)

    def mixed_tokens(self, prompt: str | Mixed, *, add_bos: bool) -> NDArray[np.int32]:
        """Returns the tokens of a prompt in which control tokens count as such, and may be media."""
        texts, attached = (prompt.texts, prompt.attached) if isinstance(prompt, Mixed) else ((prompt,), ())
        found: list[NDArray[np.int32]] = []
        for i, text in enumerate(texts):
            for piece in self.media_pieces(attached[i - 1]) if i else ():
                found.append(piece.cells if isinstance(piece, Medium) else piece)
            encoded = text.encode("utf-8", "replace")
            found.append(self.target.tokenize(encoded, special=True, add_bos=add_bos and not i))
        return np.concatenate(found)

    def chat_tokens(
        self,
        messages: Sequence[chat.Message],
        template: str | None = None,
        attached: Sequence[Attachment] = (),
    ) -> NDArray[np.int32]:
        """Returns the prompt of a conversation, by the template given, the model's own, or ChatML.

        attached: what the messages have marks of.
        """
        template = template or template_or_fallback(self.target.chat_template)
        bos = self.target.bos_text
        text = chat.render(template, messages, bos=bos, eos=self.target.eos_text)
        add_bos = not (bos and text.startswith(bos))  # most templates write the start token themselves
        return self.mixed_tokens(mixed(text, attached), add_bos=add_bos)

    def stream(self, prompt: Sequence[int] | NDArray[np.int32], request: Request) -> Stream:
        """Prepares a generation for an engine. Raises PromptTooLongError or SettingError."""
        return self.streams.stream(prompt, request)

    def generate(
        self,
        prompt: Sequence[int] | NDArray[np.int32],
        request: Request,
        *,
        cancelled: Callable[[], bool] = lambda: False,
        scorers: Mapping[ModelName, Scorer] | None = None,
    ) -> Iterator[Round]:
        """Generates after `prompt` (token ids); what it shares with the one before is not evaluated again.

        cancelled: asked before each step; the last round then reports it. scorers: what evaluates instead of
        `contexts`, such as a memory in front of them.
        Raises PromptTooLongError, SettingError, or an EngineError out of llama.cpp.
        """
        self._adapt(request)
        costs = self.costs() if request.fixed_length is None or self._costs_checked else unmeasured()
        return alone(self, prompt, request, cancelled=cancelled, costs=costs, scorers=scorers)
