"""The routes of llama.cpp's own server: /completion, /infill, /tokenize, /apply-template, /props, /slots."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from edgespec.chat.traits import traits_of
from edgespec.core.attachment import Mixed
from edgespec.errors import TemplateError
from edgespec.protocol.media_marks import MARKER
from edgespec.protocol.messages import Loaded, SlotName
from edgespec.protocol.messages import Prompt as WorkerPrompt
from edgespec.sampling.settings import sampling_for
from edgespec.server.bodies import checked_router
from edgespec.server.dialects.dialect import FINGERPRINT, Dialect, with_pair
from edgespec.server.dialects.embeddings import in_pieces
from edgespec.server.dialects.llama_cpp.answers import LlamaAnswer, piece_of, sampling_settings
from edgespec.server.dialects.llama_cpp.requests import (
    ALIASES,
    DetokenizeRequest,
    InfillRequest,
    JsonPrompt,
    LlamaCompletion,
    LlamaGenerationRequest,
    Prompt,
    SlotFile,
    TokenizeRequest,
)
from edgespec.server.filling import fill_prompt
from edgespec.server.media import marked
from edgespec.server.pair_session import PairSession
from edgespec.server.refusal import Refusal, closed, missing, unsupported
from edgespec.server.requests.chat import ChatRequest
from edgespec.server.requests.fields import Listed
from edgespec.server.requests.generation import AdapterScale, scales_of

TOKENS = 2000  # that are written at once


class LlamaCppDialect(Dialect):
    """Answers clients made for llama-server."""

    aliases = ALIASES

    def routes(self) -> APIRouter:
        return checked_router(
            ("POST", self.complete, "/completion", "/completions"),
            ("POST", self.infill, "/infill"),
            ("POST", self.tokenize, "/tokenize"),
            ("POST", self.detokenize, "/detokenize"),
            ("POST", self.apply_template, "/apply-template"),
            ("GET", self.props, "/props"),
            ("GET", self.adapters, "/lora-adapters"),
            ("POST", self.set_adapters, "/lora-adapters"),
            ("GET", self.slots, "/slots"),
            ("POST", self.slot_action, "/slots/{slot}"),
        )

    # -- text

    @with_pair
    async def complete(self, session: PairSession, body: LlamaCompletion, request: Request) -> Response:
        """Continues text."""
        body.check()
        given = body.prompts()
        prompts = [await self._prompt(session, prompt) for prompt in given]
        several = isinstance(body.prompt, list) and not any(isinstance(x, int) for x in body.prompt)
        return await self._answer(session, body, prompts, several or (body.n or 1) > 1, request)

    @with_pair
    async def infill(self, session: PairSession, body: InfillRequest, request: Request) -> Response:
        """Fills the gap between two texts."""
        body.check()
        prompt = await fill_prompt(session, body, body.limit())
        return await self._answer(session, body, [prompt], (body.n or 1) > 1, request)

    async def _answer(
        self,
        session: PairSession,
        body: LlamaGenerationRequest,
        prompts: Sequence[WorkerPrompt],
        several: bool,
        request: Request,
    ) -> Response:
        about = session.about
        body.logit_bias = await self._bias(session, body) or None
        submits, texts = [], []
        for prompt in prompts:
            made = body.submits(prompt, add_bos=True, defaults=session.defaults)
            submits += made
            texts += [await self._spelt(session, prompt, about)] * len(made)
        answer = LlamaAnswer(
            session.name, about.plain_s, about.n_ctx, body, submits, texts, several, about.end_tokens
        )
        return await session.answer(submits, answer, body, request)

    async def _prompt(self, session: PairSession, given: Prompt) -> WorkerPrompt:
        """Returns a prompt as the worker takes it; turns texts among token ids into tokens."""
        if isinstance(given, JsonPrompt):
            files, reads = given.multimodal_data or [], session.about.reads
            if not files:
                return given.prompt_string
            if not reads:
                raise unsupported("multimodal_data", "this model reads text only: leave it out")
            listed = [files] if isinstance(files, str) else files
            return marked(given.prompt_string, listed, "multimodal_data")
        if isinstance(given, str):
            return given
        return await self._mixed(session, given, add_bos=True)

    async def _mixed(
        self, session: PairSession, given: Sequence[int | str], *, add_bos: bool, special: bool = True
    ) -> tuple[int, ...]:
        tokens: list[int] = []
        for i, item in enumerate(given):
            if isinstance(item, int):
                tokens.append(item)
            else:
                start = add_bos and i == 0
                tokens += await session.worker.engine.tokenize(item, add_bos=start, special=special)
        return tuple(tokens)

    async def _spelt(self, session: PairSession, prompt: WorkerPrompt, about: Loaded) -> str:
        if isinstance(prompt, Mixed):
            prompt = MARKER.join(prompt.texts)
        if isinstance(prompt, str):
            return (about.bos if about.bos_token is not None else "") + prompt
        if not prompt or max(prompt) >= about.n_vocab:
            return ""  # the worker reports what is wrong with it
        return b"".join(await session.worker.engine.spell(prompt)).decode("utf-8", "replace")

    async def _bias(self, session: PairSession, body: LlamaGenerationRequest) -> dict[str, float]:
        """Returns what is added to logits, by token id: each token of a text gets its bias."""
        found: dict[str, float] = {}
        for token, value in body.biased():
            if isinstance(token, str):
                tokens = await session.worker.engine.tokenize(token, add_bos=False, special=False)
                found.update(dict.fromkeys(map(str, tokens), value))
            else:
                found[str(token)] = value
        return found

    # -- tokens and templates

    @with_pair
    async def tokenize(self, session: PairSession, wanted: TokenizeRequest) -> Response:
        """Turns text into tokens."""
        given = [wanted.content] if isinstance(wanted.content, str) else wanted.content
        tokens = await self._mixed(session, given, add_bos=wanted.add_special, special=wanted.parse_special)
        if not wanted.with_pieces:
            return JSONResponse({"tokens": tokens})
        pieces = await session.worker.engine.spell(tokens)
        rows = ({"id": token, "piece": piece_of(p)} for token, p in zip(tokens, pieces, strict=True))
        return in_pieces("tokens", rows, {}, at_once=TOKENS)

    @with_pair
    async def detokenize(self, session: PairSession, wanted: DetokenizeRequest) -> dict[str, str]:
        """Turns tokens into text."""
        pieces = await session.worker.engine.spell(wanted.tokens)
        return {"content": b"".join(pieces).decode("utf-8", "replace")}

    @with_pair
    async def apply_template(self, session: PairSession, body: ChatRequest) -> dict[str, str]:
        """Shows the prompt of a conversation."""
        body.check()
        return {"prompt": (await session.composed(body))[0].text}

    # -- what it is

    async def props(self, model: str | None = None) -> dict[str, Any]:
        """Describes a pair, without loading it; clients ask before their first request."""
        worker = self.answering.worker(model)
        about = worker.about
        if about is None:
            raise worker.absence()
        template = self.answering.template(worker.load, about)
        defaults = self.answering.settings.defaults
        sampling = sampling_settings(sampling_for({**about.sampling, **defaults.sampling}))
        seed = -1 if defaults.seed is None else defaults.seed
        limit = -1 if defaults.max_tokens is None else defaults.max_tokens
        return {
            "default_generation_settings": {
                "params": {**sampling, "seed": seed, "n_predict": limit},
                "n_ctx": about.n_ctx,
            },
            "total_slots": about.slots,
            "model_alias": self.answering.pairs.name_of(worker.load),
            "model_path": Path(about.path).name,
            "modalities": {
                "vision": "picture" in about.reads,
                "audio": "sound" in about.reads,
                "video": False,
            },
            "media_marker": MARKER,
            "endpoint_slots": not self.answering.settings.no_slots,
            "endpoint_props": False,
            "endpoint_metrics": not self.answering.settings.no_metrics,
            "chat_template": template,
            "chat_template_source": self.answering.template_source(worker.load, about),
            "chat_template_caps": await asyncio.to_thread(_caps, template),
            "bos_token": about.bos,
            "eos_token": about.eos,
            "build_info": FINGERPRINT,
            "is_sleeping": worker.state == "unloaded",
        }

    async def slots(self, fail_on_no_slot: bool = False, model: str | None = None) -> Response:
        """Returns how many slots are taken, but not by which request: only the engine knows.

        This loads nothing and keeps nothing loaded: to look every few seconds is not to use the model.
        """
        if self.answering.settings.no_slots:
            raise closed("/slots", "--no-slots")
        worker = self.answering.worker(model)
        about = worker.about
        if about is None:
            raise worker.absence()
        busy = worker.requests - worker.waiting
        if fail_on_no_slot and busy == about.slots:
            raise Refusal(503, "no slot is free: try again in a moment", retry_s=1)
        speculative = about.draft_name is not None
        return JSONResponse(
            [
                {"id": i, "n_ctx": about.n_ctx, "speculative": speculative, "is_processing": i < busy}
                for i in range(about.slots)
            ]
        )

    @with_pair
    async def adapters(self, session: PairSession) -> Response:
        """Lists the LoRA adapters, with the scales of requests that name none."""
        adapters, scales = session.about.adapters, session.defaults.adapters
        return JSONResponse(
            [
                {
                    "id": i,
                    "path": Path(one.path).name,
                    "scale": scale,
                    "task_name": "",
                    "prompt_prefix": "",
                }
                for i, (one, scale) in enumerate(zip(adapters, scales, strict=True))
            ]
        )

    @with_pair
    async def set_adapters(self, session: PairSession, wanted: Listed[AdapterScale]) -> dict[str, bool]:
        """Sets the scales of requests that name none; adapters that are not listed get 0."""
        scales = scales_of(wanted, session.defaults.adapters, param=None)
        self.answering.set_scales(session.worker, scales)
        return {"success": True}

    @with_pair
    async def slot_action(
        self, session: PairSession, slot: int, action: SlotName, body: SlotFile | None = None
    ) -> dict[str, Any]:
        """Saves what a slot holds to a file, restores it from one, or has it forgotten."""
        folder, name = self.answering.settings.slot_folder, body and body.filename
        if folder is None:
            sentence = "slots are not saved, restored or erased here: the server needs --slot-save-path"
            raise Refusal(501, sentence, code="unsupported")
        if not name and action != "erase":
            raise missing("filename", "filename is missing")
        path = str(folder / name) if name else ""
        done = await session.worker.engine.slot_action(slot, action, path)
        if action == "erase":
            return {"id_slot": slot, "n_erased": done.n_tokens}
        counted, bytes_ = ("n_saved", "n_written") if action == "save" else ("n_restored", "n_read")
        counts = {counted: done.n_tokens, bytes_: done.n_bytes}
        times = {f"{action}_ms": round(1000 * done.seconds, 3)}
        return {"id_slot": slot, "filename": name, **counts, "timings": times}


def _caps(template: str) -> dict[str, bool]:
    """Returns what conversations may contain. Always tools: a template without them gets them in words.

    Empty for a template that renders no conversation: a request gets an error that says why.
    """
    try:
        traits = traits_of(template)
    except TemplateError:
        return {}
    return {
        "supports_tools": True,
        "supports_tool_calls": True,
        "supports_parallel_tool_calls": traits.several_calls or not traits.calls,
        "supports_system_role": True,
        "supports_string_content": True,
        "supports_typed_content": True,
        "supports_preserve_reasoning": "reasoning_content" in template,
    }
