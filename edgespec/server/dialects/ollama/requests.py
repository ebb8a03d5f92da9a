"""Requests of Ollama's clients, as pydantic models, and the chat requests they stand for.

Ollama's `options` are llama.cpp's settings under names of its own. Those that belong to loading a model, or
that no longer exist, mean nothing for a request here: the server says so once for each.
"""

import re
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, ConfigDict, StrictBool, StrictStr

from edgespec.server.dialects.translation import Content, Translated, called, picture, text
from edgespec.server.refusal import missing, unsupported
from edgespec.server.requests.fields import Fields, Listed, Number, Stops, TokenId, Whole, with_numbers
from edgespec.server.requests.generation import Seed, Speculation, Top

LONGEST_S = 10**9  # that a model is kept; for longer is for ever
LATEST = ":latest"  # the tag of a name without one
SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ms|us|ns|[smh]|$)")
DURATION = re.compile(f"(?:{PART.pattern})+")
RENAMED = {"num_predict": "n_predict", "repeat_last_n": "penalty_last_n"}


def _untagged(name: object) -> object:
    return name.removesuffix(LATEST) if isinstance(name, str) else name


ModelName = Annotated[StrictStr, BeforeValidator(_untagged)]


def _in_seconds(value: object) -> object:
    """Returns a duration such as "1h30m", "300ms" or "-1" in seconds."""
    if not isinstance(value, str):
        return value
    sign, text = (-1, value[1:]) if value[:1] == "-" else (1, value.removeprefix("+"))
    if not DURATION.fullmatch(text):
        raise ValueError("give seconds, or a text such as '5m', '1h30m' or '-1'")
    return sign * sum(float(n) * SECONDS[unit] for n, unit in PART.findall(text))


KeepAlive = Annotated[Number, BeforeValidator(_in_seconds)]


class MadeFunction(Fields):
    """A function that the model called."""

    name: StrictStr
    arguments: dict[str, Any] | StrictStr = {}


class MadeCall(Fields):
    id: StrictStr = ""
    function: MadeFunction


class OllamaMessage(Fields):
    """One turn. tool_name: the tool whose result it is; newer clients send the call's id as well."""

    role: Literal["system", "user", "assistant", "tool"]
    content: StrictStr | None = None
    thinking: StrictStr | None = None
    images: Listed[StrictStr] | None = None
    tool_calls: Listed[MadeCall] | None = None
    tool_name: StrictStr | None = None
    tool_call_id: StrictStr | None = None


@with_numbers
class OllamaOptions(Fields):
    """Ollama's `options`: the sampling settings, and some names of its own. Others are kept, to be named."""

    model_config = ConfigDict(extra="allow")

    seed: Seed | None = None
    stop: Stops = None
    num_predict: Whole | None = None  # below 0: as many as fit
    repeat_last_n: Whole | None = None

    def fields(self) -> dict[str, Any]:
        """Returns the corresponding fields of a chat request."""
        given = self.model_dump(exclude_none=True, exclude=set(self.model_extra or ()))
        return {RENAMED.get(name, name): value for name, value in given.items()}


class Kept(Fields):
    """What says how long a model stays loaded."""

    keep_alive: KeepAlive | None = None

    @property
    def idle_s(self) -> float | None:
        """After how long without a request the model is to be unloaded; None: never."""
        kept = self.keep_alive
        return kept if kept is not None and 0 <= kept < LONGEST_S else None


class OllamaFields(Kept, Translated):
    """What a chat and a generation share."""

    chats: ClassVar[bool]  # it has messages

    model: ModelName
    stream: StrictBool | None = None
    format: Literal["", "json"] | dict[str, Any] | None = None
    options: OllamaOptions | None = None
    think: StrictBool | StrictStr | None = None
    logprobs: StrictBool | None = None
    top_logprobs: Top | None = None
    edgespec: Speculation | None = None

    @property
    def silent(self) -> bool:
        """True if it asks nothing of the model."""
        raise NotImplementedError

    @property
    def unloads(self) -> bool:
        """True if it only unloads the model, which then is not loaded for it."""
        return self.silent and self.idle_s == 0

    def unused(self) -> list[str]:
        """Returns the options that mean nothing here."""
        return sorted((self.options and self.options.model_extra) or ())

    def fields(self) -> dict[str, Any]:
        thinks = self.think if isinstance(self.think, str) else None
        variables = {"enable_thinking": self.think} if isinstance(self.think, bool) else None
        return {
            **(self.options.fields() if self.options else {}),
            **self._format(),
            "stream": self.stream is not False,
            "reasoning_effort": thinks,
            "chat_template_kwargs": variables,
            "logprobs": self.logprobs or bool(self.top_logprobs) or None,
            "top_logprobs": self.top_logprobs,
            "edgespec": self.edgespec,
        }

    def _format(self) -> dict[str, Any]:
        if self.format == "json":
            return {"response_format": {"type": "json_object"}}
        return {"json_schema": self.format} if self.format else {}


class OllamaChat(OllamaFields):
    """POST /api/chat. Without messages it only loads the model, or unloads it."""

    chats = True
    messages: Listed[OllamaMessage] | None = None
    tools: Listed[dict[str, Any]] | None = None

    @property
    def silent(self) -> bool:
        return not self.messages

    def fields(self) -> dict[str, Any]:
        calls: list[tuple[str, str]] = []  # id and name of those without a result so far
        messages = [_turn(message, calls) for message in self.messages or ()]
        return {**super().fields(), "messages": messages, "tools": self.tools or None}


class OllamaGenerate(OllamaFields):
    """POST /api/generate: one question, or (raw) text to continue, or (suffix) a gap to fill.

    context: the tokens of earlier turns, as an answer returned them.
    """

    chats = False
    prompt: StrictStr | None = None
    suffix: StrictStr | None = None
    system: StrictStr | None = None
    template: StrictStr | None = None
    context: Listed[TokenId] | None = None
    raw: StrictBool | None = None
    images: Listed[StrictStr] | None = None

    @property
    def silent(self) -> bool:
        return not (self.prompt or self.suffix)

    def fields(self) -> dict[str, Any]:
        if self.images and self.context:
            raise unsupported(
                "context", "pictures have no place in earlier turns' tokens, so ask by /api/chat"
            )
        if self.template:
            sentence = "a request brings no template here: `edgespec serve --chat-template` chooses one"
            raise unsupported("template", sentence)
        system = [{"role": "system", "content": self.system}] if self.system else []
        messages = [*system, {"role": "user", "content": _content(self.prompt, self.images)}]
        return {**super().fields(), "messages": messages}


class OllamaEmbed(Kept):
    """POST /api/embed; prompt: the only text of /api/embeddings."""

    model: ModelName = ""
    input: StrictStr | Listed[StrictStr] = ""
    prompt: StrictStr | None = None
    truncate: StrictBool | None = None
    dimensions: Whole | None = None


class NamedModel(Fields):
    """POST /api/show and /api/pull. name: the older field."""

    model: ModelName = ""
    name: ModelName = ""
    stream: StrictBool | None = None

    def called(self) -> str:
        """Returns the name; raises Refusal if there is none."""
        if not (self.model or self.name):
            raise missing("model", "model is missing: name one")
        return (self.model or self.name).removeprefix("hf.co/")  # as Ollama names the hub's repositories


def _content(words: str | None, images: Sequence[str] | None) -> Content:
    """Returns the content of a message, pictures first as at Ollama."""
    if not images:
        return words or ""
    urls = [image if image.startswith("data:") else f"data:image/*;base64,{image}" for image in images]
    return [*map(picture, urls), text(words or "")]


def _turn(message: OllamaMessage, calls: list[tuple[str, str]]) -> dict[str, Any]:
    """Returns a turn in OpenAI's format. calls: those that wait for their results, which it changes."""
    turn: dict[str, Any] = {"role": message.role, "content": _content(message.content, message.images)}
    if message.thinking:
        turn["reasoning_content"] = message.thinking
    if message.tool_calls:
        turn["tool_calls"] = [_call(call, calls) for call in message.tool_calls]
    if message.role == "tool":
        turn["tool_call_id"] = message.tool_call_id or _answered(message.tool_name, calls)
        if message.tool_name:
            turn["name"] = message.tool_name
    return turn


def _call(call: MadeCall, calls: list[tuple[str, str]]) -> dict[str, Any]:
    id, name = call.id or f"call_{len(calls)}", call.function.name
    calls.append((id, name))
    return called(id, name, call.function.arguments)


def _answered(tool: str | None, calls: list[tuple[str, str]]) -> str:
    """Returns the id of the first call that this is the result of, and takes it from the list."""
    i = next((i for i, (_, name) in enumerate(calls) if tool in (None, name)), None)
    return calls.pop(i)[0] if i is not None else f"call_{tool or 0}"
