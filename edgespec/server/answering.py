"""What all dialects need from the server: the loaded pair, a conversation's prompt, and answers.

A dialect turns its requests into `Submit`s and the results into its own format (`Answerer`); waiting,
streaming, clients that leave and clients that do not read are handled here, the same for all.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import threading
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import Literal

from fastapi import Request
from fastapi.responses import JSONResponse, Response

from edgespec.chat.constrained_calls import called_or_formed, calls_form, forced
from edgespec.chat.conversation import Composed, compose
from edgespec.chat.normalization import normalized
from edgespec.chat.well_known import template_or_fallback, turn_end
from edgespec.core.attachment import Attachment
from edgespec.errors import GrammarError, TemplateError
from edgespec.grammar.grammar import Grammar, json_schema
from edgespec.pairs.adapters import Scales
from edgespec.protocol.media_marks import mixed
from edgespec.protocol.messages import Loaded, Submit, longest_text
from edgespec.server.dialects.openai.requests import ChatRequest, GenerationRequest
from edgespec.server.embeddings import Embeddings
from edgespec.server.event_stream import Answerer, EventStream, to_its_end
from edgespec.server.generation import AnswerChoices
from edgespec.server.json_body import n_characters
from edgespec.server.media import fetched
from edgespec.server.metrics import Metrics
from edgespec.server.own_calls import OWNER, OwnCalls
from edgespec.server.pairs import Pairs
from edgespec.server.refusal import Refusal, invalid
from edgespec.server.settings import RequestDefaults, ServerSettings
from edgespec.server.supervisor import Supervisor
from edgespec.server.turns import TurnReader, readers
from edgespec.server.worker_life import WorkerLife
from edgespec.system.limited_child import GIVEN_UP

_log = logging.getLogger(__name__)


class Answering:
    """The pair, as the dialects see it."""

    def __init__(
        self,
        engines: Supervisor,
        settings: ServerSettings,
        metrics: Metrics,
        pairs: Pairs,
        embeddings: Embeddings,
    ) -> None:
        self.engines, self.settings, self.pairs, self.embeddings = engines, settings, pairs, embeddings
        self._metrics = metrics
        self._random = random.Random()
        self._calls = OwnCalls()
        self._scales: dict[WorkerLife, Scales] = {}  # where they were changed
        self._worker: WorkerLife | None = None

    def of(self, worker: WorkerLife) -> Answering:
        """Returns the same for one pair, whichever others come and go."""
        made = copy(self)
        made._worker = worker
        return made

    def named(self, name: str | None) -> Answering:
        """Returns the same for the pair of a name, loaded or not; for the current one without a name."""
        return self.of(self.engines.of(self.pairs.called(name)))

    @property
    def worker(self) -> WorkerLife:
        """The pair that is asked."""
        return self._worker or self.engines.current

    def loaded(self) -> Loaded:
        """Returns the pair's description; raises Refusal if it is not loaded."""
        if self.worker.about is None or self.worker.state != "ready":
            raise self.worker.absence()
        return self.worker.about

    def name(self) -> str:
        """Returns the model's name for clients."""
        return self.pairs.name_of(self.worker.load)

    def defaults(self) -> RequestDefaults:
        """Returns the defaults of a request. A share of the requests gets no drafter, for comparison."""
        defaults = self.settings.defaults
        drafter = "none" if self._random.random() < self.settings.canary else defaults.drafter
        sampling = {**self.loaded().sampling, **defaults.sampling}
        return replace(defaults, sampling=sampling, drafter=drafter, adapters=self.scales())

    def scales(self) -> Scales:
        """Returns the scales of the pair's adapters where a request names none."""
        own = tuple(adapter.scale for adapter in self.loaded().adapters)
        return self._scales.get(self.worker, own)

    def set_scales(self, scales: Scales) -> None:
        """Changes these."""
        self._scales[self.worker] = scales

    def longest(self) -> tuple[int | None, list[str]]:
        """Returns how many characters a text may have, if known, and the names of models that may differ."""
        load, about = self.worker.load, self.worker.about
        if about is None or self.worker.state != "ready":
            return None, []
        others = [pair for pair in self.pairs.known() if pair.load != load]
        return longest_text(about.n_ctx), [name for pair in others for name in (pair.name, pair.target)]

    def template(self, about: Loaded, *, tools: bool = False) -> str:
        """Returns the chat template: the one given, the model's own (for tools, if it has one), or ChatML."""
        own = tools and about.tool_template
        return self._given() or own or template_or_fallback(about.chat_template)

    def _given(self) -> str | None:
        return self.settings.chat_template if self.pairs.is_first(self.worker.load) else None

    def template_source(self, about: Loaded) -> Literal["given", "model", "chatml"]:
        """Returns where the chat template comes from."""
        if self._given():
            return "given"
        return "model" if about.chat_template else "chatml"

    async def composed(self, body: ChatRequest) -> tuple[Composed, list[Attachment]]:
        """Returns the prompt of a conversation, and the media that it has marks of; raises Refusal."""
        about = self.loaded()
        tools = body.usable_tools()
        template = self.template(about, tools=bool(tools))
        media: list[Attachment] = []
        await self._fetch_pictures(body, about)
        messages = [message.for_template(about.reads, media) for message in body.messages]
        if (size := n_characters(messages)) > (most := longest_text(about.n_ctx)):
            sentence = f"the messages have {size:,} characters, and {most:,} are read at once: shorten them"
            raise Refusal(400, sentence, param="messages", code="context_length_exceeded")
        for message in messages:
            for call in message.get("tool_calls") or ():
                made = call["function"]
                made["arguments"] = self._calls.as_generated(made["name"], made.get("arguments"))
        messages, changed = normalized(messages) if self.settings.normalize else (messages, ())
        if changed:
            _log.debug("%s: left out of the system prompt, or moved behind it", ", ".join(changed))
        thinking = self.settings.defaults.thinking
        usual = {} if thinking is None else {"enable_thinking": thinking}
        given_up = threading.Event()
        GIVEN_UP.set(given_up)
        try:
            composed = await asyncio.to_thread(
                compose,
                template,
                messages,
                bos=about.bos,
                eos=about.eos,
                tools=tools,
                documents=body.documents,
                variables={**usual, **body.variables()},
                add_generation_prompt=body.add_generation_prompt is not False,
                go_on=body.goes_on(),
            )
            return replace(composed, normalized=changed), media
        except TemplateError as error:
            raise Refusal(400, str(error), param="messages", code="template_refused") from None
        finally:
            given_up.set()

    async def _fetch_pictures(self, body: ChatRequest, about: Loaded) -> None:
        """Fetches the pictures that are named by addresses, if hosts are named for that. Raises Refusal."""
        hosts = self.settings.media_hosts if "picture" in about.reads else ()
        lists = [message.content for message in body.messages if isinstance(message.content, list)]
        if parts := [part for content in lists for part in content if hosts and part.address]:
            files = await fetched([part.address for part in parts], hosts, self.settings.max_body)
            for part, file in zip(parts, files, strict=True):
                part.fetched(file)

    async def chat_submits(self, body: ChatRequest) -> tuple[list[Submit], list[TurnReader], str]:
        """Returns the generations of a conversation, who reads each, and the prompt. Raises Refusal."""
        (composed, media), form = await self.composed(body), None
        template = self.template(self.loaded(), tools=bool(composed.tools))
        several = body.parallel_tool_calls is not False
        if body.must_call:
            try:
                composed, form = forced(composed, several=several)
            except GrammarError as error:
                raise invalid("tools", f"tools: {error}") from None
        elif wanted := body.form():
            if composed.tools and wanted.kind == "json_schema" and not composed.family.whole:
                composed, schema = called_or_formed(composed, json.loads(wanted.text))
                wanted = json_schema(schema, lenient=wanted.lenient)
            form = wanted
            if composed.family.thoughts or composed.family.final:
                form = behind_thoughts(wanted, composed, template)
        elif self.settings.strict_calls and body.strict_calls is not False and not body.goes_on():
            form = calls_form(composed)
        submits = body.submits(
            mixed(composed.text, media),
            add_bos=self.wants_bos(composed.text),
            defaults=self.defaults(),
            shown=composed.shown,
            stops=(*composed.stops, *turn_end(template)),
            form=form,
        )
        spans = message_spans(composed.text, [message.beginning for message in body.messages])
        changed = composed.normalized
        submits = [replace(submit, messages=spans, normalized=changed) for submit in submits]
        turns = readers(
            composed,
            len(submits),
            apart=body.shows_thoughts_apart,
            several=several,
            forced=body.must_call,
            note=self._calls.note,
        )
        return submits, turns, composed.text

    def wants_bos(self, text: str) -> bool:
        """Returns whether the start token goes before a prompt: most templates write it themselves."""
        bos = self.loaded().bos
        return not (bos and text.startswith(bos))

    async def n_tokens(self, body: ChatRequest) -> int:
        """Returns how many tokens the prompt of a conversation has."""
        composed, media = await self.composed(body)
        if body.must_call:
            composed, _ = forced(composed, several=True)
        prompt = mixed(composed.text, media)
        return await self.worker.n_tokens(prompt, add_bos=self.wants_bos(composed.text))

    def _owned(self, submit: Submit, owner: str) -> Submit:
        """Returns a generation of somebody: it guesses from that one's earlier texts, or from everybody's."""
        texts = "" if self.settings.share_lookup else owner
        return replace(submit, owner=owner, request=replace(submit.request, owner=texts))

    def _check_number(self, n: int) -> None:
        """Refuses more answers at once than ever have room, which "try again later" would not help."""
        most = self.worker.load.queue + self.loaded().slots
        if n > most:
            sentence = f"{n} answers are asked for at once: slots and queue of this server hold {most}"
            raise invalid(None, f"{sentence} (--slots, --queue)")

    async def answer(
        self,
        request: Request,
        submits: Sequence[Submit],
        answerer: Answerer,
        body: GenerationRequest,
        stream: type[EventStream] = EventStream,
    ) -> Response:
        """Answers a request. stream: how it is streamed. Raises Refusal if it cannot be started."""
        self._check_number(len(submits))
        generation = AnswerChoices(
            self.worker,
            [self._owned(submit, OWNER.get()) for submit in submits],
            self._metrics,
            seconds=self.settings.request_s,
            progress=bool(body.stream and body.return_progress),
        )
        request.state.generation = generation  # for its line in the log
        try:
            await generation.submit()
        except Refusal as refusal:
            raise body.advised(refusal) from None
        if body.stream:
            events = to_its_end(answerer, generation, request.state.request_id)
            return stream(events, generation, self.settings.send_s)
        return JSONResponse(await answerer.whole(generation))


def message_spans(prompt: str, texts: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """Returns where the text of each message begins and ends in a prompt.

    One that is not found has no length, where the one before ends.
    """
    found, end = list[tuple[int, int]](), 0
    for text in map(str.strip, texts):
        place = prompt.find(text, end) if text else -1
        begin, end = (place, place + len(text)) if place >= 0 else (end, end)
        found.append((begin, end))
    return tuple(found)


def behind_thoughts(form: Grammar, composed: Composed, template: str) -> Grammar:
    """Returns a form that leaves a model its reasoning: the answer is what follows it."""
    if composed.family.final:
        return replace(form, behind=composed.family.final)
    opening, closing = composed.family.thoughts[0]
    if composed.opened:
        return replace(form, behind=closing)
    closed = composed.text.rstrip().endswith(closing.strip())
    if closed or opening.strip() not in template:  # or does not reason
        return form
    return replace(form, behind=closing, opening=opening)
