"""Attach or start: a client of a server that already runs, else of an engine started for this program alone.

    with attach(Wanted(), on_progress=print) as engine:
        for part in engine.client.chat([{"role": "user", "content": "What is EdgeSpec?"}]):
            ...

A running server is found by its file, and is sent nothing before it has proved that it wrote that
file. If none runs, or none with the wanted pair, `edgespec serve` is started as a child on a free
port of this machine (`private_engine`), which ends with us. Looking and starting happen under a lock, so
that two chats started together load one pair: the second finds the engine of the first. If there can be no
lock, as in a home that cannot be written, there is none: at worst, two engines are loaded. A private engine
belongs to its owner. Other attached programs learn when it ends, and why (EndpointLostError), and
`again` gives them engines of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from edgespec.client.answer import Info
from edgespec.client.client import Client, proves
from edgespec.client.state_file import ServerState, states
from edgespec.errors import EdgeSpecError, EndpointError
from edgespec.local.private_engine import LOOK_AGAIN_S, PrivateEngine
from edgespec.pairs.store import default_files, open_store
from edgespec.system import config
from edgespec.system.closing import Closing
from edgespec_models import tiny
from edgespec_models.shelf.store import EMBEDDED, StoreError

GLANCE_S = 0.25  # a program that only looks whether an engine runs holds the lock for less


@dataclass(frozen=True, slots=True)
class WantedEngine:
    """Which engine is wanted."""

    target: Path | None = None  # files of the pair; None: whichever runs, else the default
    draft: Path | None = None
    n_ctx: int | None = None  # tokens that a request must be able to use, at least
    flags: tuple[str, ...] = ()  # further ones of `edgespec serve`, for an engine that is started
    template: str = ""  # the digest of the chat template that it must use

    def is_met(self, state: ServerState) -> bool:
        """True if a server is what is wanted.

        If no pair is named, a server that was started for everybody is, whatever its pair. Another
        program's own server is only if it is what would be started here: its owner may have wanted
        something else, and ends it with itself.
        """
        if state.private and self.target is None and not self._would_be_started(state):
            return False
        return (
            (self.target is None or str(self.target.resolve()) == state.target)
            and (self.draft is None or str(self.draft.resolve()) == state.draft)
            and (self.n_ctx is None or state.n_ctx >= self.n_ctx)
            and self.template in ("", state.template)
        )

    def name(self) -> str | None:
        """Returns the name of the pair whose files are wanted; None if it has none, or any pair will do."""
        if self.target is None:
            return None
        files = self.target.resolve(), self.draft and self.draft.resolve()
        if files == (tiny.target_path().resolve(), tiny.draft_path().resolve()):
            return EMBEDDED
        with suppress(StoreError):
            for pair in open_store().pairs():
                if files == (pair.target.path.resolve(), pair.draft and pair.draft.path.resolve()):
                    return pair.name
        return None

    def has_loaded(self, state: ServerState, info: Info) -> bool:
        """True if a server, started for everybody, has the wanted pair in memory beside another."""
        roomy = self.n_ctx is None or (info.n_ctx or 0) >= self.n_ctx
        return not (state.private or self.template) and info.model == self.name() and info.loaded and roomy

    def _would_be_started(self, state: ServerState) -> bool:
        """True if a server has the default pair, with the usual context if none is asked for."""
        try:
            target, draft = default_files()
        except EdgeSpecError:  # its files are gone: starting it reports that
            return False
        drafts = self.draft is not None or state.draft == (str(draft.resolve()) if draft else None)
        usual = self.n_ctx is not None or state.usual
        return state.target == str(target.resolve()) and drafts and usual

    def arguments(self) -> list[str]:
        """Returns the flags for `edgespec serve`."""
        given = {"--target": self.target, "--draft": self.draft, "--ctx": self.n_ctx}
        chosen = [part for flag, value in given.items() if value is not None for part in (flag, str(value))]
        return [*chosen, *self.flags]


@dataclass(frozen=True, slots=True)
class Progress:
    """What happens before there is an engine, in a few words. fraction: of loading, if known."""

    stage: Literal["waiting", "starting", "loading", "ready"]
    text: str
    fraction: float | None = None


OnProgress = Callable[[Progress], None]


@dataclass(slots=True)
class Attached(Closing):
    """An engine that answers, and whose it is. Use it in a `with`, or close it."""

    client: Client
    info: Info  # what answers
    wanted: WantedEngine  # what was asked for
    private: bool = False  # it was started here and ends with us
    lent: bool = False  # it is another program's private engine and ends with that
    _child: PrivateEngine | None = field(default=None, repr=False)

    @property
    def model(self) -> str:
        return self.info.model

    def close(self) -> None:
        """Releases the engine; a private one ends."""
        if self._child:
            self._child.end()

    def fault(self) -> str | None:
        """Returns why the engine is gone, in a sentence; None while it is there. Asks it."""
        if self._child:
            return self._child.fault()
        if self.client.lives() and (self.client.state is None or proves(self.client.state)):
            return None
        if self.lent:
            return "the program that started this engine has ended, so the engine ended too"
        return f"the server at {self.client.where} has ended"

    def again(
        self, on_progress: OnProgress = lambda _: None, cancelled: Callable[[], bool] = lambda: False
    ) -> Attached:
        """Releases this engine and attaches or starts anew; raises as `attach` does."""
        self.close()
        if self.client.state is None and not self._child:
            return connect(self.client)
        return attach(self.wanted, on_progress, cancelled)


def connect(client: Client) -> Attached:
    """Attaches to a named server (`Client.at`), of ours or not. Raises EndpointError."""
    return Attached(client, client.info(), WantedEngine())


def attach(
    wanted: WantedEngine | None = None,
    on_progress: OnProgress = lambda _: None,
    cancelled: Callable[[], bool] = lambda: False,
) -> Attached:
    """Finds a running server of this user's that is what is wanted, else starts an engine for us alone.

    on_progress: called with what happens, in this thread. cancelled: asked every now and then; if it returns
    True, what was begun is ended and EndpointError raised. Raises EndpointError if the engine cannot be
    started, with its reason, EngineDiedError if it died while starting.
    """
    wanted = wanted or WantedEngine()
    if found := _running(wanted):
        return found
    with _starting(on_progress, cancelled):
        if found := _running(wanted):  # the previous holder of the lock has started it
            return found
        return _start(wanted, on_progress, cancelled)


def own(wanted: WantedEngine, on_progress: OnProgress, cancelled: Callable[[], bool]) -> Attached:
    """Starts an engine for us alone, whatever runs: one that has never answered. Raises as `attach` does."""
    with _starting(on_progress, cancelled):
        return _start(wanted, on_progress, cancelled)


def _running(wanted: WantedEngine) -> Attached | None:
    """Returns a server that is what is wanted; those that stay before those that end with their owner."""
    name = wanted.name()
    for state in sorted(states(), key=lambda state: state.private):
        met = wanted.is_met(state)
        if (met or name and not state.private) and proves(state):
            client = Client.of(state)
            client.model = None if wanted.target is None else state.model if met else name
            with suppress(EndpointError):  # it is just ending
                info = client.info()
                if met or wanted.has_loaded(state, info):
                    return Attached(client, info, wanted, lent=state.private)
    return None


def start_lock() -> Any:
    """Returns the lock under which engines are started; not taken yet."""
    import filelock  # late: most starts of a program need none

    folder = config.state_folder() / "servers"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return filelock.FileLock(folder / "start.lock", mode=0o600)


def lock_for_starting() -> Any:
    """Takes that lock, so that a chat waits for the engine that we start. None if others hold it."""
    try:
        lock = start_lock()
        lock.acquire(timeout=GLANCE_S)
    except OSError:  # a timeout is one, too
        return None
    return lock


@contextmanager
def _starting(on_progress: OnProgress, cancelled: Callable[[], bool]) -> Iterator[None]:
    """Waits until no other program starts an engine, and lets none start until we are done."""
    lock = None
    try:
        lock = start_lock()
        try:
            lock.acquire(timeout=0)
        except TimeoutError:
            on_progress(Progress("waiting", "another program is starting an engine"))
            lock.acquire(timeout=-1, poll_interval=LOOK_AGAIN_S, cancel_check=cancelled)
    except OSError:  # nobody else can have it either, or nobody waits for it any more
        pass
    try:
        _heed(cancelled)
        yield
    finally:
        if lock is not None:
            lock.release()


def _heed(cancelled: Callable[[], bool]) -> None:
    if cancelled():
        raise EndpointError("starting the engine was cancelled", code="cancelled")


def _start(wanted: WantedEngine, on_progress: OnProgress, cancelled: Callable[[], bool]) -> Attached:
    on_progress(Progress("starting", "starting the engine"))
    child = PrivateEngine(wanted.arguments())
    try:
        while True:
            event = child.next_event()
            _heed(cancelled)
            if event is None:
                continue
            if event["event"] == "loading":
                on_progress(_loading(event))
            elif event["event"] == "ready":
                break
            elif event["event"] == "failed":
                raise EndpointError(str(event["message"]), code="load_failed")
            elif event["event"] == "ended":
                raise child.death()
        client = Client.at(f"http://{event['host']}:{event['port']}/v1", child.key)
        info = client.info()
    except BaseException:
        child.end()
        raise
    on_progress(Progress("ready", f"{info.model} is ready"))
    return Attached(client, info, wanted, private=True, _child=child)


def _loading(event: dict[str, Any]) -> Progress:
    names = [str(event[name]) for name in ("target", "draft") if event.get(name)]
    fraction = event.get("fraction")
    text = str(event.get("text") or "loading " + " and ".join(names))
    return Progress("loading", text, float(fraction) if isinstance(fraction, int | float) else None)
