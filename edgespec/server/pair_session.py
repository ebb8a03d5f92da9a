"""A loaded pair, as the handlers of one request see it: prompts of conversations, and answers.

A dialect turns its requests into `Submit`s and the results into its own format (`Answerer`); waiting,
streaming, clients that leave and clients that do not read are handled here, the same for all.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from fastapi import Request
from fastapi.responses import JSONResponse, Response

from edgespec.chat.constrained_calls import called_or_formed, calls_form, forced
from edgespec.chat.conversation import Composed, compose
from edgespec.chat.normalization import normalized
from edgespec.chat.well_known import turn_end
from edgespec.core.attachment import Attachment
from edgespec.errors import GrammarError, TemplateError
from edgespec.grammar.grammar import Grammar, json_schema
from edgespec.protocol.media_marks import mixed
from edgespec.protocol.messages import Loaded, Submit, longest_text
from edgespec.server.answering import Answering
from edgespec.server.event_stream import Answerer, EventStream, to_its_end
from edgespec.server.generation import AnswerChoices
from edgespec.server.json_body import n_characters
from edgespec.server.logs import log_with
from edgespec.server.media import fetched
from edgespec.server.own_calls import OWNER
from edgespec.server.refusal import Refusal, invalid
from edgespec.server.requests.chat import ChatRequest
from edgespec.server.requests.generation import GenerationRequest
from edgespec.server.settings import RequestDefaults
from edgespec.server.turns import TurnReader
from edgespec.server.worker_life import WorkerLife
from edgespec.system.limited_child import GIVEN_UP

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PairSession:
    """The pair that a request is answered by, while it is kept loaded for that."""

    server: Answering
    worker: WorkerLife
    about: Loaded
    defaults: RequestDefaults  # what the request leaves open

    @property
    def name(self) -> str:
        """The model's name for clients."""
        return self.server.pairs.name_of(self.worker.load)

    async def composed(self, body: ChatRequest) -> tuple[Composed, list[Attachment]]:
        """Returns the prompt of a conversation, and the media that it has marks of; raises Refusal."""
        about, settings, tools = self.about, self.server.settings, body.usable_tools()
        media: list[Attachment] = []
        if "picture" in about.reads:
            await fetch_pictures(body, settings.media_hosts, settings.max_body)
        messages = [message.for_template(about.reads, media) for message in body.messages]
        if (size := n_characters(messages)) > (most := longest_text(about.n_ctx)):
            sentence = f"the messages have {size:,} characters, and {most:,} are read at once: shorten them"
            raise Refusal(400, sentence, param="messages", code="context_length_exceeded")
        for message in messages:
            for call in message.get("tool_calls") or ():
                made = call["function"]
                made["arguments"] = self.server.calls.as_generated(made["name"], made.get("arguments"))
        messages, changed = normalized(messages) if settings.normalize else (messages, ())
        if changed:
            _log.debug("%s: left out of the system prompt, or moved behind it", ", ".join(changed))
        thinking = settings.defaults.thinking
        usual = {} if thinking is None else {"enable_thinking": thinking}
        given_up = threading.Event()
        GIVEN_UP.set(given_up)
        try:
            composed = await asyncio.to_thread(
                compose,
                self._template(tools=bool(tools)),
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

    async def chat_submits(self, body: ChatRequest) -> tuple[list[Submit], list[TurnReader], str]:
        """Returns the generations of a conversation, who reads each, and the prompt. Raises Refusal."""
        composed, media = await self.composed(body)
        template = self._template(tools=bool(composed.tools))
        composed, form = self._formed(body, composed, template)
        submits = body.submits(
            mixed(composed.text, media),
            add_bos=self._wants_bos(composed.text),
            defaults=self.defaults,
            shown=composed.shown,
            stops=(*composed.stops, *turn_end(template)),
            form=form,
        )
        spans = message_spans(composed.text, [message.beginning for message in body.messages])
        changed = composed.normalized
        submits = [replace(submit, messages=spans, normalized=changed) for submit in submits]
        turns = [
            TurnReader(
                composed.parser(governed=form is not None),  # by a grammar, which keeps calls to their form
                apart=body.shows_thoughts_apart,
                several=body.parallel_tool_calls is not False,
                forced=body.must_call,
                note=self.server.calls.note,
            )
            for _ in submits
        ]
        return submits, turns, composed.text

    def _formed(
        self, body: ChatRequest, composed: Composed, template: str
    ) -> tuple[Composed, Grammar | None]:
        """Returns a conversation with the form that its answer has to have, if any. Raises Refusal."""
        if body.must_call:
            try:
                return forced(composed, several=body.parallel_tool_calls is not False)
            except GrammarError as error:
                raise invalid("tools", f"tools: {error}") from None
        if wanted := body.form():
            if composed.tools and wanted.kind == "json_schema" and not composed.family.whole:
                composed, schema = called_or_formed(composed, json.loads(wanted.text))
                wanted = json_schema(schema, lenient=wanted.lenient)
            if composed.family.thoughts or composed.family.final:
                wanted = behind_thoughts(wanted, composed, template)
            return composed, wanted
        if self.server.settings.strict_calls and body.strict_calls is not False and not body.goes_on():
            return composed, calls_form(composed)
        return composed, None

    async def n_tokens(self, body: ChatRequest) -> int:
        """Returns how many tokens the prompt of a conversation has."""
        composed, media = await self.composed(body)
        if body.must_call:
            composed, _ = forced(composed, several=True)
        prompt = mixed(composed.text, media)
        return await self.worker.engine.n_tokens(prompt, add_bos=self._wants_bos(composed.text))

    async def answer(
        self,
        submits: Sequence[Submit],
        answerer: Answerer,
        body: GenerationRequest,
        request: Request,
        stream: type[EventStream] = EventStream,
    ) -> Response:
        """Answers a request. stream: how it is streamed. Raises Refusal if it cannot be started."""
        self._check_number(len(submits))
        settings = self.server.settings
        generation = AnswerChoices(
            self.worker,
            [self._owned(submit, OWNER.get()) for submit in submits],
            self.server.metrics,
            seconds=settings.request_s,
            progress=bool(body.stream and body.return_progress),
        )
        log_with(generation.figures)
        try:
            await generation.submit()
        except Refusal as refusal:
            raise body.advised(refusal) from None
        if body.stream:
            events = to_its_end(answerer, generation, request.state.request_id)
            return stream(events, generation, settings.send_s, self.name)
        return JSONResponse(await answerer.whole(generation))

    def _template(self, *, tools: bool) -> str:
        return self.server.template(self.worker.load, self.about, tools=tools)

    def _wants_bos(self, text: str) -> bool:
        """Returns whether the start token goes before a prompt: most templates write it themselves."""
        return not (self.about.bos and text.startswith(self.about.bos))

    def _owned(self, submit: Submit, owner: str) -> Submit:
        """Returns a generation of somebody: it guesses from that one's earlier texts, or from everybody's."""
        texts = "" if self.server.settings.share_lookup else owner
        return replace(submit, owner=owner, request=replace(submit.request, owner=texts))

    def _check_number(self, n: int) -> None:
        """Refuses more answers at once than ever have room, which "try again later" would not help."""
        most = self.worker.load.queue + self.about.slots
        if n > most:
            sentence = f"{n} answers are asked for at once: slots and queue of this server hold {most}"
            raise invalid(None, f"{sentence} (--slots, --queue)")


def session_of(server: Answering, worker: WorkerLife) -> PairSession:
    """Returns what a request sees of a pair; raises Refusal if it is not loaded."""
    about = worker.loaded()
    return PairSession(server, worker, about, server.defaults(worker, about))


async def fetch_pictures(
    body: ChatRequest,
    hosts: frozenset[str],
    most: int,
    *,
    fetch: Callable[..., Awaitable[list[bytes]]] = fetched,
) -> None:
    """Fetches the pictures that a conversation names by addresses, if hosts are named for that.

    most: bytes. Raises Refusal.
    """
    lists = [message.content for message in body.messages if isinstance(message.content, list)]
    if parts := [part for content in lists for part in content if hosts and part.address]:
        files = await fetch([part.address for part in parts], hosts, most)
        for part, file in zip(parts, files, strict=True):
            part.fetched(file)


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
