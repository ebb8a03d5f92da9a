"""Prompts on disk: found again by the next program, never wrong, never in anybody's way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import posix
from full_disk import no_room
from numpy.typing import NDArray
from test_prefixes import LENGTH, REQUEST, answered, more, text
from test_scheduler import FakePair, Watched
from tiny_gguf import write_hybrid, write_llama, write_recurrent, write_sliding

from edgespec.core.loop import Want
from edgespec.core.request import Request
from edgespec.core.values import Emitted, Started
from edgespec.engine import prompt_files
from edgespec.engine.engine import Engine
from edgespec.engine.pair import Pair
from edgespec.engine.prompt_files import PIECE, PromptFiles
from edgespec.engine.slot_actions import read_slot
from edgespec.engine.state_file import NotAStateError, StateFile, read_head, read_state, write_state
from edgespec.engine.state_keys import state_keys
from edgespec.errors import SettingError
from edgespec.llama.context import Context, ContextSettings
from edgespec.llama.saved import Saved
from edgespec.pairs.settings import PairSettings
from edgespec.sampling.sampler import Sampling

ROOTS = {"target": b"t" * 32, "draft": b"d" * 32}
SIZE = 100  # bytes of state for each token


class Parted(Watched):
    """A table whose states can be saved in parts."""

    @property
    def parts(self) -> Parted:  # type: ignore[override]
        return self

    def save(self, s: int, start: int = 0, end: int | None = None) -> Saved:
        held = self.held(s)[start:end]
        return Saved(held.tobytes(), np.full(SIZE * held.size, 7, np.uint8), 0)

    def add(self, s: int, saved: Saved) -> bool:
        self.texts[s] = [*self.texts.get(s, []), *np.frombuffer(saved.tokens, np.int32).tolist()]
        self.restored.append(len(self.texts[s]))
        return True


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[list[PromptFiles]]:
    """Yields a list of what is to be closed."""
    files: list[PromptFiles] = []
    yield files
    for one in files:
        one.close(10.0)


def program(
    folder: Path, opened: list[PromptFiles], *, most: int = 10**8, slots: int = 2, **disk: Any
) -> Engine:
    """Returns the engine of a program that has just started, without host memory."""
    pair = FakePair(slots=slots, n_ctx=4096, cells=16384, drafter="none")
    for name in ("target", "draft"):
        context = Parted(8, seed=1 if name == "target" else 2, order=2)
        setattr(pair, name, context)
        pair.contexts[name] = context  # type: ignore[index]
    opened.append(PromptFiles(folder, most, ROOTS, **disk))  # type: ignore[arg-type]
    opened[-1].wait(10.0)
    return Engine(pair, slots=slots, files=opened[-1])


def ended(engine: Engine, opened: list[PromptFiles]) -> None:
    while engine.prefixes.write_some():
        time.sleep(0.001)
    opened.pop().close(10.0)


def asked(engine: Engine, prompt: NDArray[np.int32]) -> None:
    """Has a prompt read, and nothing behind it."""
    engine.submit("r", prompt, replace(REQUEST, max_tokens=1))
    while not engine.idle:
        engine.step()


def states(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.state"))


def test_the_next_program_finds_what_this_one_has_read(tmp_path: Path, opened: list[PromptFiles]) -> None:
    engine = program(tmp_path / "kept", opened)
    assert answered(engine, text(1, 1200), text(2)) == [0, 0]
    ended(engine, opened)
    engine = program(tmp_path / "kept", opened)
    assert answered(engine, more(text(2)), more(text(1, 1200)), text(1, 700)) == [LENGTH, 1200, 699]
    if os.name == "posix":
        assert (tmp_path / "kept").stat().st_mode & 0o777 == 0o700
        assert {path.stat().st_mode & 0o777 for path in states(tmp_path / "kept")} == {0o600}


def test_a_shared_beginning_is_written_once_and_a_longer_text_adds_what_is_new(
    tmp_path: Path, opened: list[PromptFiles]
) -> None:
    preamble = text(1, 2 * PIECE)
    engine = program(tmp_path, opened)
    for seed in (2, 3):
        asked(engine, np.concatenate([preamble, text(seed)]))
        while engine.prefixes.write_some():
            time.sleep(0.001)
    ended(engine, opened)
    assert len(states(tmp_path)) == 2 + 2, "two pieces and two ends"
    before = {path: path.stat().st_ino for path in states(tmp_path)}
    engine = program(tmp_path, opened)
    asked(engine, np.concatenate([preamble, text(2), text(4, PIECE)]))
    ended(engine, opened)
    after = {path: path.stat().st_ino for path in states(tmp_path)}
    assert len(after) == 2 + 1 + 2, "the end became a whole piece, with one behind it"
    assert sum(after.get(path) == inode for path, inode in before.items()) == 3


def test_the_least_recently_used_goes_first_and_ends_before_beginnings(
    tmp_path: Path, opened: list[PromptFiles]
) -> None:
    of_one = 1300 * (SIZE + 4)
    for seed in (1, 2, 1, 3):
        engine = program(tmp_path, opened, most=int(2.5 * of_one))
        answered(engine, text(seed, 1300))
        ended(engine, opened)
    assert sum(path.stat().st_size for path in states(tmp_path)) <= 2.5 * of_one
    engine = program(tmp_path, opened, slots=4)
    first, second, third = answered(engine, *(more(text(seed, 1300)) for seed in (1, 2, 3)))
    assert first == third == 1300 and second in (0, PIECE)


def test_a_text_that_is_larger_than_all_that_may_be_kept_leaves_its_beginning(
    tmp_path: Path, opened: list[PromptFiles]
) -> None:
    engine = program(tmp_path, opened, most=900 * (SIZE + 4))
    answered(engine, text(1, 2000))
    ended(engine, opened)
    assert 0 < sum(path.stat().st_size for path in states(tmp_path)) <= 900 * (SIZE + 4)


def test_whatever_is_damaged_is_evaluated_again(tmp_path: Path, opened: list[PromptFiles]) -> None:
    rng = np.random.default_rng(1)
    engine = program(tmp_path, opened)
    answered(engine, text(1, 1200))
    ended(engine, opened)
    sound = {path: path.read_bytes() for path in states(tmp_path)}
    for turn in range(40):
        for path, data in sound.items():
            path.write_bytes(data)
        path = list(sound)[turn % len(sound)]
        damaged = bytearray(path.read_bytes())
        if turn % 3 == 0:
            damaged = damaged[: rng.integers(len(damaged))]
        else:
            at = rng.integers(len(damaged)) if turn % 3 == 1 else rng.integers(200)
            damaged[at] ^= 1 << rng.integers(8)
        path.write_bytes(damaged)
        engine = program(tmp_path, opened)
        fetch = opened[-1].find(more(text(1, 1200)).tobytes(), 1)
        if not fetch.done.is_set():
            opened[-1].read(fetch)
        assert fetch.done.wait(10)
        for saved in [one for found in fetch.found.values() for one in found]:
            assert (saved.state == 7).all() and saved.state.size == SIZE * len(saved.tokens) // 4
        found = {name: sum(len(one.tokens) // 4 for one in fetch.found.get(name, [])) for name in ROOTS}
        assert sum(found.values()) < 2 * 1200 and not path.exists()
        opened.pop().close(10.0)


def test_of_a_text_with_a_picture_only_what_is_before_it_is_kept(
    tmp_path: Path, opened: list[PromptFiles]
) -> None:
    engine = program(tmp_path, opened)
    target = engine._contexts["target"]
    assert isinstance(target, Parted)
    target.texts[0] = [*text(1, 700).tolist(), -5, -5, *text(2, 300).tolist()]
    ended(engine, opened)
    kept = [read_head(path) for path in states(tmp_path)]
    assert sorted(len(one.saved.tokens) // 4 for one in kept) == [700 - PIECE, PIECE]


def test_another_key_finds_nothing(tmp_path: Path, opened: list[PromptFiles]) -> None:
    engine = program(tmp_path, opened)
    answered(engine, text(1, 600))
    ended(engine, opened)
    opened.append(PromptFiles(tmp_path, 10**8, {"target": b"o" * 32}))
    opened[-1].wait(10.0)
    assert opened[-1].find(more(text(1, 600)).tobytes(), 1).wanted == {"target": []}


@posix
def test_a_folder_that_cannot_be_written_is_reported_and_a_pipe_in_it_is_passed_over(
    tmp_path: Path, opened: list[PromptFiles]
) -> None:
    """Nothing was kept on a read-only disk, without a word; a pipe among the files was waited for."""
    os.mkfifo(tmp_path / f"{'0' * 64}.state")
    opened.append(PromptFiles(tmp_path, 10**8, ROOTS))  # type: ignore[arg-type]
    opened[-1].wait(1.0)
    assert not opened[-1].looking
    closed = Path("/dev/fd")  # no file can be made there, even by root
    with pytest.raises(OSError):
        PromptFiles(closed, 10**8, ROOTS)  # type: ignore[arg-type]


def test_who_waits_for_the_disk_holds_up_nobody(tmp_path: Path, opened: list[PromptFiles]) -> None:
    engine = program(tmp_path, opened)
    answered(engine, text(1, 1200))
    ended(engine, opened)
    go_on = threading.Event()

    def slow(file: StateFile) -> Saved:
        assert go_on.wait(10)
        return read_state(file)

    engine = program(tmp_path, opened, read=slow)
    engine.submit("waits", more(text(1, 1200)), REQUEST)
    engine.submit("goes on", text(2), Request(Sampling(temperature=0), max_tokens=30))
    seen: list[str] = []
    while not engine.idle:
        for one in engine.step():
            if isinstance(one, Started):
                seen.append(f"{one.id} from {one.cached_tokens}")
            if isinstance(one, Emitted) and one.round.finish:
                seen.append(f"{one.id} ended")
                go_on.set()
    assert seen == ["goes on from 0", "goes on ended", "waits from 1200", "waits ended"]


def test_a_folder_that_takes_long_to_look_through_holds_up_nobody(
    tmp_path: Path, opened: list[PromptFiles], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each request that waited held up the engine for 2 s, and so did a pipe in the folder, for ever."""
    engine = program(tmp_path, opened)
    answered(engine, text(1, 600))
    ended(engine, opened)
    if os.name == "posix":
        os.mkfifo(tmp_path / ("0" * 64 + ".state"))
    go_on, look = threading.Event(), PromptFiles._look

    def slow(files: PromptFiles) -> None:
        assert go_on.wait(10)
        look(files)

    monkeypatch.setattr(PromptFiles, "_look", slow)
    monkeypatch.setattr(prompt_files, "KNOWN_S", 100.0)
    monkeypatch.setattr(PromptFiles, "wait", lambda self, seconds: self._known.wait(min(seconds, 0.02)))
    engine = program(tmp_path, opened)
    engine.submit("fresh", text(2), replace(REQUEST, fresh=True))
    engine.submit("waits", more(text(1, 600)), REQUEST)
    seen: list[str] = []
    while not engine.idle:
        for one in engine.step():
            if isinstance(one, Started):
                seen.append(f"{one.id} from {one.cached_tokens}")
            if isinstance(one, Emitted) and one.round.finish == "length":
                go_on.set()
    assert seen == ["fresh from 0", "waits from 600"] and len(states(tmp_path)) >= 2


def test_a_disk_that_hangs_is_not_waited_for(tmp_path: Path, opened: list[PromptFiles]) -> None:
    engine = program(tmp_path, opened)
    answered(engine, text(1, 600))
    ended(engine, opened)
    go_on = threading.Event()

    def hangs(file: StateFile) -> Saved:
        assert go_on.wait(10)
        return read_state(file)

    engine = program(tmp_path, opened, read=hangs, fetch_s=0.1)
    assert answered(engine, more(text(1, 600))) == [0]
    go_on.set()


@pytest.mark.skipif(os.name != "posix", reason="there are no pipes of this kind")
def test_no_flipped_bit_and_no_pipe_is_read_as_a_state(tmp_path: Path) -> None:
    """A slot's file with another token than the state's was restored: the checksum was the state's alone."""
    path, rng = tmp_path / "slot", np.random.default_rng(4)
    saved = Saved(
        text(1, 30).tobytes(), rng.integers(0, 256, 200).astype(np.uint8), 3, np.ones(4, np.float32), b"draft"
    )
    written = write_state(path, ROOTS["target"], 0, saved)
    found = read_state(read_head(path), copied=True)
    assert (found.tokens, found.least, found.written) == (saved.tokens, 3, b"draft")
    assert found.row is not None and (found.row == 1).all() and (found.state == saved.state).all()
    sound = path.read_bytes()
    assert len(sound) == written.size
    for at in range(len(sound)):
        path.write_bytes(sound[:at] + bytes([sound[at] ^ 1 << int(rng.integers(8))]) + sound[at + 1 :])
        with pytest.raises(SettingError, match=r"^slot cannot be restored: "):
            read_slot(path, ROOTS["target"])
        for copied in (False, True):
            with pytest.raises(NotAStateError):
                kept = read_head(path)
                if kept.parent != ROOTS["target"]:
                    raise NotAStateError("nobody asks for it")
                read_state(kept, copied=copied)
    for end in range(len(sound)):
        path.write_bytes(sound[:end])
        with pytest.raises(SettingError, match=r"^slot cannot be restored: "):
            read_slot(path, ROOTS["target"])
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(NotAStateError):
        read_head(tmp_path / "pipe")


@posix
def test_a_full_disk_stops_no_answer(tmp_path: Path, opened: list[PromptFiles]) -> None:
    engine = program(tmp_path, opened)
    with no_room():
        assert answered(engine, text(1, 600)) == [0]
        ended(engine, opened)
    assert not states(tmp_path)


def test_a_request_for_a_fresh_reading_gets_nothing_from_disk(
    tmp_path: Path, opened: list[PromptFiles]
) -> None:
    engine = program(tmp_path, opened)
    answered(engine, text(1, 600))
    ended(engine, opened)
    engine = program(tmp_path, opened)
    engine.submit("r", more(text(1, 600)), replace(REQUEST, fresh=True))
    happened = [one for _ in range(3) for one in engine.step()]
    assert [one.cached_tokens for one in happened if isinstance(one, Started)] == [0]


# ---- real states, and programs that are killed -------------------------------------------------------------

WRITERS = {
    "attention": write_llama, "sliding": write_sliding, "hybrid": write_hybrid, "recurrent": write_recurrent,
}  # fmt: skip
HOW = PairSettings(n_ctx=1400, threads=1, slots=2, remember=False, flash_attention=False, cache_disk=10**9)
CHECKPOINTS = (550, 1096)
PREAMBLE = np.random.default_rng(3).integers(0, 256, 1100).astype(np.int32)
KILLED = """
import os, signal, sys
from pathlib import Path
import test_prompt_files as t
from edgespec.engine import state_file
from edgespec_models import kept_file

stage, left = sys.argv[3], int(sys.argv[4])

def dies():
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)

class Dying:
    def __init__(self, file): self.file = file
    def __enter__(self): return self
    def __exit__(self, *_): self.file.close()
    def write(self, part):
        n = self.file.write(part[: max(1, len(part) // 2)] if stage == "writing" else part)
        if stage == "writing": dies()
        return n

def replaced(old, new, replace=os.replace):
    if stage == "before the name" and ".state" in str(new): dies()
    replace(old, new)
    if stage == "after the name" and ".state" in str(new): dies()

kept_file.os.replace = replaced
opening = Path.open

def opened(self, *a, **k):
    file = opening(self, *a, **k)
    return Dying(file) if ".state." in self.name else file

Path.open = opened
t.write_down(Path(sys.argv[1]), sys.argv[2])
"""


def write_down(folder: Path, kind: str) -> None:
    """Reads the preamble and writes its states."""
    with Pair(folder / f"{kind}.gguf", None, HOW) as pair:
        files = PromptFiles(folder / "prompts", 10**9, state_keys(pair.contexts))
        files.wait(10.0)
        engine = Engine(pair, slots=2, files=files, cache_ram=10**7)
        engine.submit("r", PREAMBLE, replace(REQUEST, max_tokens=1), CHECKPOINTS)
        while not engine.idle:
            engine.step()
        while engine.prefixes.write_some():
            time.sleep(0.001)
        files.close(30.0)


@pytest.mark.sample(1)
@pytest.mark.skipif(os.name != "posix", reason="there is no kill -9")
@pytest.mark.parametrize(
    ("kind", "stage", "after", "found", "shared"),
    [
        ("attention", "writing", 60, 512, 1100),
        ("attention", "after the name", 1, 1024, 1100),
        ("hybrid", "before the name", 0, 0, 1100),
        ("hybrid", "after the name", 1, 550, 800),
        ("hybrid", "before the name", 1, 0, 800),
        *(
            pytest.param(*of, marks=pytest.mark.slow)
            for of in (
                ("attention", "writing", 0, 0, 1100),
                ("attention", "before the name", 1, 512, 1100),
                ("sliding", "writing", 5, 0, 1100),
                ("hybrid", "after the name", 0, 1100, 1100),
                ("hybrid", "writing", 60, 0, 800),
                ("sliding", "after the name", 1, 550, 800),
                ("recurrent", "before the name", 2, 550, 800),
            )
        ),
    ],
)
def test_whatever_a_killed_program_left_gives_the_logits_of_a_fresh_reading(
    kind: str, stage: str, after: int, found: int, shared: int, tmp_path: Path
) -> None:
    """shared: tokens that the next prompt has of the first; behind them, checkpoints are of use."""
    file = WRITERS[kind](tmp_path / f"{kind}.gguf")
    command = [sys.executable, "-c", KILLED, str(tmp_path), kind, stage, str(after)]
    child = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, timeout=100)
    assert child.returncode == -signal.SIGKILL, child.stderr.decode()[-2000:]
    prompt = np.concatenate([PREAMBLE[:shared], text(5, 20)])
    with Pair(file, None, HOW) as pair:
        files = PromptFiles(tmp_path / "prompts", 10**9, state_keys(pair.contexts))
        engine, context = Engine(pair, slots=2, files=files, cache_ram=10**7), pair.contexts["target"]
        assert answered(engine, prompt) == [found]
        rows = context.score([Want(prompt, seq=engine._slots[0].seq)])[0].copy()
        files.close(10.0)
        assert not list((tmp_path / "prompts").glob("*.part"))
        with Context(pair.target, ContextSettings(n_ctx=1400, threads=1, flash_attention=False)) as fresh:
            assert np.abs(rows - fresh.score([Want(prompt)])[0]).max() < 0.01
