"""What the web process and the engine worker say to each other, and how it gets through the pipe.

Frozen dataclasses, pickled, with their length in front. Pickle and not JSON: both ends are one program in
one version, started by one another over a pipe that nobody else holds, so what is unpickled is what we
pickled; and rounds, samplings and token tuples arrive as the types they were, with no second schema to keep.
Nothing that came from a network is ever unpickled, only strings and numbers inside these classes.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal

from edgespec.chat.fill_in import FillTokens
from edgespec.core.scores import Scoring
from edgespec.core.values import Emitted, Reading, Started
from edgespec.grammar.grammar import Grammar
from edgespec.pairs.settings import PairSettings
from edgespec.sampling.sampler import Sampling

DrafterChoice = Literal["auto", "model", "mtp", "eagle", "dflash", "medusa", "lookup", "lookahead", "none"]
Stage = Literal["target", "draft", "caches", "measuring"]
RefusalKind = Literal["setting", "too_long", "queue_full", "engine", "draining", "fault"]
HEAD = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class Load:
    """The first message to a worker: what to load, and how. One worker has one pair for all its life.

    queue: requests that may wait. Two that are equal are the same pair, loaded in the same way.
    """

    target: str
    draft: str | None
    settings: PairSettings
    queue: int


@dataclass(frozen=True, slots=True)
class Submit:
    """A generation is wanted."""

    id: str
    prompt: str | tuple[int, ...]  # text as a template rendered it, or token ids
    add_bos: bool  # put the start token in front of text
    sampling: Sampling
    max_tokens: int | None  # None: as many as fit
    stop: tuple[str, ...]
    seed: int | None
    choice: int
    drafter: DrafterChoice
    draft_length: int | None
    pieces: bool  # send the text of every single token as well
    scoring: Scoring | None = None  # log probabilities of the tokens, if wanted
    shown: tuple[str, ...] = ()  # texts of control tokens that are to be in the answer's text
    grammar: Grammar | None = None  # what the text may look like
    ignore_eos: bool = False  # the model may not end it
    fresh: bool = False  # as in `Request`


@dataclass(frozen=True, slots=True)
class Cancel:
    """Nobody waits for this request any more."""

    id: str


@dataclass(frozen=True, slots=True)
class Tokenize:
    """The tokens of a text are wanted; add_bos as in `Submit`. special: control tokens in it are meant."""

    id: str
    prompt: str
    add_bos: bool
    special: bool = True


@dataclass(frozen=True, slots=True)
class Tokenized:
    """The tokens of a text."""

    id: str
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Spell:
    """The bytes of tokens are wanted."""

    id: str
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Spelt:
    """The bytes of each token, control tokens included."""

    id: str
    pieces: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Ping:
    """Do you hear? number: of this one."""

    number: int


@dataclass(frozen=True, slots=True)
class Pong:
    """It hears."""

    number: int  # of the ping
    step_s: float  # how long the engine has been in its step, 0 between two


@dataclass(frozen=True, slots=True)
class Loading:
    """How far loading is."""

    stage: Stage  # what is being done
    progress: float  # of the whole, 0 to 1


@dataclass(frozen=True, slots=True)
class Loaded:
    """The pair is there."""

    name: str
    draft_name: str | None
    n_ctx: int
    n_ctx_train: int
    n_vocab: int
    n_bytes: int
    chat_template: str | None
    bos: str
    eos: str
    sampling: Mapping[str, str]  # the file's `general.sampling.*`
    plain_s: float  # a token of plain decoding
    plain_growth_s: float  # what it takes longer for each token before it
    path: str
    slots: int
    bos_token: int | None  # the start token, where the model wants one in front of text
    fill: FillTokens | None  # None where it cannot
    place: str = ""  # which graphics cards evaluate, in words; "" where the processor does all of it


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
    """A request will not be answered, or not to its end. The counts are those of a prompt too long."""

    id: str
    kind: RefusalKind
    message: str
    n_prompt: int = 0
    n_ctx: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """What one step of the engine brought."""

    began: float  # its begin and end, seconds on the worker's clock
    at: float
    happenings: tuple[Started | Reading | Emitted | Refused, ...]
    # for each token of an `Emitted`, its own text, where that was asked for
    pieces: Mapping[str, tuple[str, ...]]
    busy: tuple[float, float]  # seconds spent so far inside llama.cpp, (draft, target)
    plain_s: float  # what a token of plain decoding costs, as known by now
    decodes: int = 0  # evaluations of the target since the `Step` before
    in_slots: int = 0  # the requests that were in slots, summed over these evaluations


ToWorker = Load | Submit | Cancel | Tokenize | Spell | Ping
FromWorker = Loading | Loaded | LoadFailed | Accepted | Refused | Tokenized | Spelt | Step | Pong


def packed(message: ToWorker | FromWorker) -> bytes:
    """Returns a message as it goes through the pipe."""
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return HEAD.pack(len(body)) + body


def unpacked(body: bytes) -> Any:
    """Returns the message of a body (without its length)."""
    return pickle.loads(body)


def receive(pipe: BinaryIO) -> Any | None:
    """Returns the next message, None where the other side has closed the pipe."""
    head = pipe.read(HEAD.size)
    if len(head) < HEAD.size:
        return None
    (length,) = HEAD.unpack(head)
    body = pipe.read(length)
    return unpacked(body) if len(body) == length else None
