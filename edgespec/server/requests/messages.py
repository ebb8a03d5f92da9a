"""The messages of a conversation as OpenAI's clients send them: texts, pictures, sounds and calls."""

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import ConfigDict, StrictStr

from edgespec.core.attachment import Attachment
from edgespec.protocol.media_marks import mark
from edgespec.server.media import attachment, from_base64, from_url, is_remote
from edgespec.server.refusal import Refusal, invalid
from edgespec.server.requests.fields import Fields, Listed

READABLE = frozenset({"text", "refusal"})  # types of parts that contain text
MEDIA = {"image_url": "picture", "input_audio": "sound"}  # types of parts that contain something else


class ImageUrl(Fields):
    """Where a picture is. Its detail is what the projector can see."""

    url: StrictStr


class InputAudio(Fields):
    """A sound, in base64."""

    data: StrictStr


class MessagePart(Fields):
    """A part of a message: text, a picture or a sound."""

    type: StrictStr
    text: StrictStr | None = None
    refusal: StrictStr | None = None
    image_url: ImageUrl | StrictStr | None = None
    input_audio: InputAudio | None = None
    _fetched: bytes | None = None

    @property
    def address(self) -> str:
        """The address that names a picture; empty if its bytes were sent."""
        url = self.image_url.url if isinstance(self.image_url, ImageUrl) else self.image_url or ""
        return url if is_remote(url) else ""

    def fetched(self, file: bytes) -> None:
        """Takes the file that was fetched from its address."""
        self._fetched = file

    def as_text(self, reads: Sequence[str], media: list[Attachment]) -> dict[str, str]:
        """Returns it as text; a medium is added to `media`, and marked. Raises Refusal."""
        if self.type in READABLE:
            return {"type": "text", "text": self.text or self.refusal or ""}
        kind = MEDIA.get(self.type, "")
        if kind not in reads:
            raise unreadable(self.type, reads)
        if self._fetched is not None:
            media.append(attachment(self._fetched))
        elif self.image_url:
            url = self.image_url if isinstance(self.image_url, str) else self.image_url.url
            media.append(from_url(url, "messages"))
        elif self.input_audio:
            media.append(from_base64(self.input_audio.data, "messages"))
        else:
            raise invalid("messages", f"a part of type {self.type} is empty")
        if media[-1].kind != kind:
            sentence = f"a part of type {self.type} has a {media[-1].kind}, or an unknown format"
            raise invalid("messages", sentence)
        return mark(len(media) - 1)


class MadeFunction(Fields):
    """The function called. arguments: JSON text, or the object itself as some clients send it."""

    name: StrictStr
    arguments: StrictStr | dict[str, Any] | None = None


class MadeCall(Fields):
    """A call that the assistant made."""

    id: StrictStr = ""
    type: StrictStr = "function"
    function: MadeFunction


class RequestMessage(Fields):
    """One turn of a conversation. Its other fields (names, reasoning) are for the template."""

    model_config = ConfigDict(extra="allow")

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: StrictStr | Listed[MessagePart] | None = None
    tool_calls: Listed[MadeCall] | None = None
    function_call: MadeFunction | None = None  # what a call was before there were tools

    @property
    def beginning(self) -> str:
        """Its text, or the first of its texts."""
        parts = [self.content] if isinstance(self.content, str) else [p.text for p in self.content or ()]
        return next((text for text in parts if text), "")

    def for_template(self, reads: Sequence[str], media: list[Attachment]) -> dict[str, Any]:
        """Returns it as a conversation has it: text parts and marks of media, and the name of the role.

        reads: which kinds of media the model reads. Media are added to the list. Raises Refusal.
        """
        content = self.content
        parts = content if isinstance(content, list) else ()
        shown = content if isinstance(content, str) else [part.as_text(reads, media) for part in parts]
        role = {"developer": "system", "function": "tool"}.get(self.role, self.role)
        extra = dict(self.model_extra or {})
        if extra.get("audio") and not content and not self._calls():
            sentence = "a message has only the id of a sound (audio), which is not stored here: send its text"
            raise invalid("messages", sentence)
        if self.role == "function":
            extra.setdefault("tool_call_id", _older_id(extra.get("name")))
        return {**extra, "role": role, "content": shown or "", **self._calls()}

    def _calls(self) -> dict[str, Any]:
        made = self.tool_calls or []
        if self.function_call and not made:
            made = [MadeCall(id=_older_id(self.function_call.name), function=self.function_call)]
        if not made:
            return {}
        return {"tool_calls": [call.model_dump() for call in made]}


def _older_id(name: object) -> str:
    """Returns an id that ties a function's result to its call, if neither has one."""
    return f"call_{name}"


def unreadable(kind: str, reads: Sequence[str] = ()) -> Refusal:
    """Returns the refusal of a message part that the model cannot read. reads: what it can, besides text."""
    what = next((name for name in ("image", "audio", "video", "file") if name in kind), kind)
    can = " and ".join(["text", *(f"{medium}s" for medium in reads)]) + (" only" if not reads else "")
    sentence = f"a message has a part of type {kind!r}: {what} input is not supported, this model reads {can}"
    return Refusal(400, sentence, param="messages", code="unsupported_value")
