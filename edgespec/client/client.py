"""The endpoint seen from Python: a conversation in, rounds out, over HTTP. Standard library only.

    for server in Client.found():
        for part in server.chat([{"role": "user", "content": "What is EdgeSpec?"}]):
            if isinstance(part, StreamedRound):
                print(part.round.text, end="")

Another OpenAI-style server works too (`Client.at(url, key)`): it reports no rounds, so each piece of text is
one. An answer may be cancelled from another thread: its connection is shut, which ends it in the engine too.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import Any, cast
from urllib.parse import urlsplit

from edgespec.client.answer import AnswerOptions, Ended, EngineState, Info, Span, StreamedRound
from edgespec.client.chunk import number, object_of
from edgespec.client.connection import Server, complaint, kind_of
from edgespec.client.state_file import PROOF_PATH, ServerState, states
from edgespec.client.stream import SILENCE_S, AnswerStream, sent_events
from edgespec.core.values import BreakEven
from edgespec.errors import EdgeSpecError, EndpointError, EndpointLostError, SettingError
from edgespec.system.odd_text import as_text
from edgespec_models.checked_value import checked

__all__ = ["AnswerOptions", "AnswerStream", "Client", "Ended", "EngineState", "Info", "Span", "StreamedRound"]
PROOF_S = 2.0  # how long a server on this machine may take for its proof
NOT_OPENAI = "is it an OpenAI-style server? Its address usually ends with /v1"
ANSWER_S = 30.0  # for what takes no evaluation


@dataclass(slots=True)
class Client:
    """One endpoint. ours: it is EdgeSpec's own, and knows speculation; None: not asked yet."""

    server: Server
    ours: bool | None = None
    state: ServerState | None = field(default=None, repr=False)  # of a server that was found by its file
    model: str | None = None  # what is asked, of several in its memory; None: what it chooses

    @classmethod
    def at(cls, url: str, key: str | None = None) -> Client:
        """Returns a client of the server at an address, as http://127.0.0.1:8080/v1. Asks nothing yet.

        An address without a path gets /v1. Raises SettingError for an invalid one.
        """
        wrong = f"the endpoint {url!r} is not an address: write it like http://127.0.0.1:8080/v1"
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            host, port = parts.hostname, parts.port
        except ValueError:
            raise SettingError(wrong) from None
        if parts.scheme not in ("http", "https") or not host:
            raise SettingError(wrong)
        if key and not (key.isascii() and key.isprintable()):
            raise SettingError(
                "the API key has characters that HTTP cannot carry: use ASCII letters, digits and punctuation"
            )
        secure = parts.scheme == "https"
        path = parts.path.rstrip("/") or "/v1"
        return cls(Server(host, port or (443 if secure else 80), key, secure=secure, path=path))

    @classmethod
    def of(cls, state: ServerState) -> Client:
        """Returns a client of one of our own servers, which has proved that it is one."""
        return cls(Server(state.host, state.port, state.key), ours=True, state=state)

    @classmethod
    def found(cls) -> list[Client]:
        """Returns the running servers of this user, the newest first. Each has proved that it is one."""
        return [cls.of(state) for state in states() if proves(state)]

    @property
    def where(self) -> str:
        return self.server.where

    def chat(
        self, messages: Sequence[Mapping[str, Any]], options: AnswerOptions | None = None
    ) -> AnswerStream:
        """Returns the answer to a conversation; the request is sent with the first step of iterating.

        messages: as OpenAI has them. Iterating yields `StreamedRound`, and last `Ended`. It raises
        EndpointError if the server refuses or fails, EndpointLostError if it is gone, EngineDiedError
        if its engine died, PromptTooLongError with both counts if it gives them.
        """
        ours = self.speculates()
        body = {**self._named(), **(options or AnswerOptions()).body(messages, ours=ours)}
        return AnswerStream(self.server, "/chat/completions", body)

    def speculates(self) -> bool:
        """True if it is a server of ours; asks it once if that is unknown."""
        if self.ours is None:
            self._listed()
        return bool(self.ours)

    def models(self) -> tuple[Info, ...]:
        """Returns what it can answer with, the loaded one first. Raises EndpointError."""
        found = self._answer("GET", "/models")
        if isinstance(found, list):
            raise EndpointError(f"{self.where}/models has a bare list: {NOT_OPENAI}")
        if not isinstance(found, dict):
            raise EndpointError(f"{self.where}/models has {kind_of(found)}: {NOT_OPENAI}")
        if found.get("error") or ("data" not in found and ("detail" in found or "message" in found)):
            raise complaint(json.dumps(found).encode(), 0)
        listed = found.get("data")
        if not isinstance(listed, list):
            raise EndpointError(f"{self.where} lists no models: {NOT_OPENAI}")
        described = [one for one in listed if isinstance(one, dict) and isinstance(one.get("id"), str)]
        if listed and not described:
            raise EndpointError(f"{self.where} lists {kind_of(listed[0])} as a model: {NOT_OPENAI}")
        self.ours = any(one.get("owned_by") == "edgespec" for one in described)
        return tuple(sorted(map(self._info, described), key=lambda info: not info.loaded))

    def info(self) -> Info:
        """Returns what answers now. Raises EndpointError, also if no model is loaded.

        A server of another kind is asked for the named model whatever it lists, for the only one that it
        lists, or for none (`Info.model` is then ""): `models` has those to choose from.
        """
        models = self._listed()
        found = next((info for info in models if info.model == self.model), None)
        if found is None and self.model and not self.ours:
            return Info(model=self.model, where=self.where)
        if not models:
            raise EndpointError(f"{self.where} has no model: load one there first")
        if found is None and not self.ours:
            if len(models) > 1:
                return Info(model="", where=self.where)
            self.model = models[0].model
        return found or models[0]

    def _listed(self) -> tuple[Info, ...]:
        """Returns the models; none if a server that lists them in no known way is asked for a named one."""
        try:
            return self.models()
        except EndpointLostError:
            raise
        except EndpointError as error:
            if not self.model or error.status in (401, 403):
                raise
            self.ours = False
            return ()

    def _named(self) -> dict[str, str]:
        return {"model": self.model} if self.model else {}

    def _info(self, entry: Mapping[str, Any]) -> Info:
        about = entry.get("meta")
        meta: Mapping[str, Any] = about if isinstance(about, dict) else {}

        def whole(name: str, *others: str) -> int | None:
            found = (meta.get(name), *map(entry.get, others))
            return next((v for v in found if isinstance(v, int) and 0 < v < 2**53), None)

        draft = meta.get("draft")
        status = entry.get("status")
        state = status.get("value") if isinstance(status, dict) else None
        return Info(
            model=as_text(str(entry["id"])),
            draft=draft if isinstance(draft, str) else None,
            n_ctx=whole("n_ctx", "max_model_len", "context_length"),
            n_ctx_train=whole("n_ctx_train"),
            memory=whole("size"),
            plain_s=number(meta, "plain_s"),
            card=str(meta.get("card") or ""),
            speculates=bool(self.ours),
            embedded=meta.get("embedded") is True,
            loaded=state in (None, "loaded"),
            where=self.where,
            chatml=meta.get("chat_template_source") == "chatml",
            build_advice=str(meta.get("build_advice") or ""),
            beyond_trained=str(meta.get("beyond_trained") or ""),
            break_even=_break_even(meta.get("break_even")),
            exact=str(meta.get("exact") or ""),
        )

    def count(self, messages: Sequence[Mapping[str, Any]]) -> int | None:
        """Returns how many tokens the prompt of a conversation has; None if the server cannot say."""
        if not self.ours and not self.speculates():
            return None
        asked = {**self._named(), "messages": list(messages)}
        counted = self._json("POST", "/edgespec/count", asked, root=True)
        n = counted.get("n_tokens")
        return n if isinstance(n, int) else None

    def last_requests(self) -> list[Mapping[str, Any]]:
        """Returns what our server reports of the last requests with this key, the newest last.

        Raises EndpointError.
        """
        listed = self._json("GET", "/edgespec/requests", root=True).get("requests")
        if not isinstance(listed, list):
            raise EndpointError(f"{self.where} lists no requests: is it EdgeSpec's, in this version?")
        return [one for one in listed if isinstance(one, dict)]

    def engine(self) -> EngineState | None:
        """Returns the state of the engine, and how far it is loaded; None if the server does not tell."""
        try:
            state = self._json("GET", "/edgespec/models", root=True).get("engine")
            return _state(state) if isinstance(state, dict) else None
        except EndpointError:
            return None

    def load(self, model: str, *, force: bool = False) -> Iterator[EngineState]:
        """Loads another pair; yields the state, and ends when it is loaded. Raises EndpointError.

        Waits for running answers; force ends them. A reader that stops early does not stop the loading.
        """
        return self._change({"action": "load", "model": model, "force": force})

    def unload(self, *, force: bool = False) -> Iterator[EngineState]:
        """Unloads the pair, as `load` loads one; the next request loads it again."""
        return self._change({"action": "unload", "force": force})

    def _change(self, wanted: Mapping[str, Any]) -> Iterator[EngineState]:
        with self.server.connected(SILENCE_S) as connection:
            body = {**wanted, "stream": True}
            answer = self.server.ask(connection, "POST", "/edgespec/models", body, root=True)
            for data in sent_events(answer, self.where):
                if data == b"[DONE]":
                    return
                yield _state(object_of(data, self.where))
        raise EndpointLostError(f"{self.where} went away while it loaded: its own terminal or log says why")

    def lives(self) -> bool:
        """True if it answers at all; says nothing of its engine."""
        try:
            with self.server.connected(PROOF_S) as connection:
                self.server.ask(connection, "GET", "/health", None, root=True).read(10_000)
        except EndpointLostError:
            return False
        except EdgeSpecError:  # an answer, too
            pass
        return True

    def _json(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, root: bool = False
    ) -> dict[str, Any]:
        answer = self._answer(method, path, body, root=root)
        if isinstance(answer, dict):
            return answer
        raise EndpointError(f"{self.where} did not answer with an object: {NOT_OPENAI}")

    def _answer(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, root: bool = False
    ) -> object:
        with self.server.connected(ANSWER_S) as connection:
            data = self.server.read(self.server.ask(connection, method, path, body, root=root))
        with suppress(ValueError, RecursionError):
            return cast(object, json.loads(data))
        what = "a web page" if data.lstrip()[:1] == b"<" else "something other than JSON"
        raise EndpointError(f"{self.where} answered with {what}: {NOT_OPENAI}")


def _state(engine: Mapping[str, Any]) -> EngineState:
    try:
        return checked(EngineState, engine)
    except TypeError:
        raise EndpointError("the server said nothing about its engine: is it another version?") from None


def proves(state: ServerState) -> bool:
    """Asks the server of a file to prove that it wrote it; nothing of the file goes over the wire."""
    nonce = secrets.token_urlsafe(32)
    server = Server(state.host, state.port, None)
    proof = ""
    with suppress(EndpointError, ValueError, KeyError, TypeError, RecursionError):
        with server.connected(PROOF_S) as connection:
            answer = server.ask(connection, "GET", f"{PROOF_PATH}?nonce={nonce}", None, root=True)
            proof = str(json.loads(answer.read(10_000))["proof"])
    return state.proves(nonce, proof)


def _break_even(found: object) -> BreakEven | None:
    """Returns what a server says of it; None if it says nothing that is understood."""
    if not isinstance(found, dict):
        return None
    shares = [number(found, each.name) for each in fields(BreakEven)]
    return None if None in shares else BreakEven(*(share or 0.0 for share in shares))
