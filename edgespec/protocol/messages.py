"""The messages between web process and engine worker, and their encoding in the pipe.

Frozen dataclasses, or named tuples where they come at each token, pickled, preceded by their length. Pickle
and not JSON: both ends are one program in one version, one started by the other over a pipe that nobody
else holds, so we unpickle only what we pickled; and rounds, samplings and token tuples arrive with their
types, without a second schema. Nothing that came from a network is ever unpickled, only strings and
numbers inside these classes.
"""

from __future__ import annotations

import pickle
import struct
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal, NamedTuple

from edgespec.core.attachment import Mixed
from edgespec.core.fill_tokens import FillTokens
from edgespec.core.request import Request
from edgespec.core.values import Emitted, PromptProgress, Started
from edgespec.pairs.adapters import Adapter
from edgespec.pairs.settings import PairSettings

Stage = Literal["target", "draft", "caches", "measuring"]
RefusalKind = Literal["setting", "too_long", "queue_full", "engine", "draining", "fault"]
SlotName = Literal["save", "restore", "erase"]
HEAD = struct.Struct("<Q")
LONGEST_TEXT = 2**22  # bytes that are turned into tokens at once; more for a context that may hold them
MOST_TOKENS = 2**18  # of a text, that whoever asks for them gets
USUAL = 16  # bytes; no text has more for each of its tokens, but for one of blanks


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """The first message to a worker: what to load, and how. One worker has one pair for all its life.

    queue: requests that may wait. Equal ones mean the same pair, loaded in the same way.
    """

    target: str
    draft: str | None
    settings: PairSettings
    queue: int


Prompt = str | tuple[int, ...] | Mixed  # text as a template rendered it, token ids, or with media


@dataclass(frozen=True, slots=True)
class Submit:
    """Asks for a generation."""

    id: str
    prompt: Prompt
    add_bos: bool  # put the start token before text
    request: Request
    pieces: bool = False  # send the text of every single token as well
    owner: str = ""  # whose it is: never is anything shown of another's
    normalized: tuple[str, ...] = ()  # lines of the system prompt that were left out or moved
    messages: tuple[tuple[int, int], ...] = ()  # where the texts of messages begin and end in the prompt


@dataclass(frozen=True, slots=True)
class Cancel:
    """Nobody waits for this request any more."""

    id: str


@dataclass(frozen=True, slots=True)
class Tokenize:
    """Asks for the tokens of a text; add_bos as in `Submit`. special: control tokens in it count as such."""

    id: str
    prompt: str | Mixed
    add_bos: bool
    special: bool = True


@dataclass(frozen=True, slots=True)
class Tokenized:
    """The tokens of a text; of more than `MOST_TOKENS`, only the number: answers wait for the pipe."""

    id: str
    tokens: array[int]  # many are packed and unpacked at once
    n: int


@dataclass(frozen=True, slots=True)
class Spell:
    """Asks for the bytes of tokens."""

    id: str
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Spelt:
    """The bytes of each token, control tokens included."""

    id: str
    pieces: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class SlotAction:
    """Asks for a slot's text to be saved to a file, restored from one, or forgotten."""

    id: str
    slot: int
    action: SlotName
    path: str = ""


@dataclass(frozen=True, slots=True)
class SlotDone:
    """An action is done."""

    id: str
    n_tokens: int  # saved, restored or forgotten
    n_bytes: int  # of the file
    seconds: float


@dataclass(frozen=True, slots=True)
class LargeBodies:
    """Says how many large bodies are being read next to the engine."""

    n: int


@dataclass(frozen=True, slots=True)
class Ping:
    """Asks whether the worker listens. number: of this ping."""

    number: int


@dataclass(frozen=True, slots=True)
class Pong:
    """The answer to a ping."""

    number: int  # of the ping
    step_s: float  # how long the engine has been in its step, 0 between two


@dataclass(frozen=True, slots=True)
class Loading:
    """How far loading is."""

    stage: Stage
    progress: float  # of the whole, 0 to 1


class Loaded(NamedTuple):  # one figure of it changes with each `StepReport`
    """The pair is loaded."""

    name: str
    draft_name: str | None
    n_ctx: int
    n_vocab: int
    n_bytes: int
    chat_template: str | None
    tool_template: str | None  # another one, for conversations with tools
    bos: str
    eos: str
    sampling: Mapping[str, str]  # the file's `general.sampling.*`
    plain_s: float  # a token of plain decoding
    plain_growth_s: float  # how much longer it takes for each token before it
    path: str
    slots: int
    bos_token: int | None  # the start token, if the model wants one before text
    fill: FillTokens | None  # None where it cannot
    meta: Mapping[str, Any]  # what else the lists of models show of it, by its name in their `meta`
    place: str = ""  # which graphics cards evaluate, in words; "" if the processor does all of it
    adapters: tuple[Adapter, ...] = ()
    beyond_trained: str = ""  # a warning, if the context is longer than what the target was trained for
    reads: tuple[str, ...] = ()  # kinds of media: "picture", "sound"
    no_media: str = ""  # why a projector that was found is not used
    end_tokens: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class LoadFailed:
    """The pair cannot be used; the sentence says why."""

    message: str
    exit_code: int


@dataclass(frozen=True, slots=True)
class Accepted:
    """A request is in the queue."""

    id: str
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Refused:
    """A request will not be answered, or not to its end. The counts are those of too long a prompt."""

    id: str
    kind: RefusalKind
    message: str
    n_prompt: int = 0
    n_ctx: int = 0


class StepReport(NamedTuple):  # see `Round`
    """What one step of the engine brought."""

    began: float  # begin and end, seconds on the worker's clock
    at: float
    events: tuple[Started | PromptProgress | Emitted | Refused, ...]
    busy: tuple[float, float]  # seconds spent so far inside llama.cpp, (draft, target)
    plain_s: float  # current estimate of a token of plain decoding
    decodes: int = 0  # evaluations of the target since the previous `StepReport`
    in_slots: int = 0  # requests in slots, summed over these evaluations


ToWorker = LoadRequest | Submit | Cancel | Tokenize | Spell | SlotAction | LargeBodies | Ping
FromWorker = (
    Loading | Loaded | LoadFailed | Accepted | Refused | Tokenized | Spelt | SlotDone | StepReport | Pong
)


def longest_text(n_ctx: int) -> int:
    """Returns how many bytes of text may be turned into tokens at once, for a context of so many."""
    return max(LONGEST_TEXT, USUAL * n_ctx)


def packed(message: ToWorker | FromWorker) -> bytes:
    """Returns the encoded message."""
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return HEAD.pack(len(body)) + body


def unpacked(body: bytes) -> Any:
    """Returns the message of a body (without its length)."""
    return pickle.loads(body)


def receive(pipe: BinaryIO) -> Any | None:
    """Returns the next message, None if the other side has closed the pipe."""
    head = pipe.read(HEAD.size)
    if len(head) < HEAD.size:
        return None
    (length,) = HEAD.unpack(head)
    body = pipe.read(length)
    return unpacked(body) if len(body) == length else None
