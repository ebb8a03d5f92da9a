"""The engine runs in a child: whatever ends it ends in a sentence, and neither process outlives the other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import tiny_gguf
from commands import EDGESPEC, posix

from edgespec.errors import EdgeSpecError, EngineDiedError, SettingError
from edgespec.system import isolate
from edgespec.system.interrupt import interruptible

NO_END = [f"--logit-bias={token}=-inf" for token in (509, 510, 511)]  # the control tokens that end text


@pytest.fixture(scope="module")
def long_winded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that talks for a minute."""
    folder = tmp_path_factory.mktemp("long-winded")
    return tiny_gguf.write_llama(folder / "long.gguf", context_length=20_000, d=128, layers=4)


@contextmanager
def talking(target: Path) -> Iterator[tuple[subprocess.Popen[bytes], psutil.Process]]:
    """Starts an answer without end and waits for its first words; gives (parent, child)."""
    command = [*EDGESPEC, "run", "--target", str(target), "--no-draft", "--threads", "1", "-n", "19000"]
    command += ["--seed", "1", "--raw", *NO_END, "the people"]
    parent = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, bufsize=0
    )
    try:
        assert parent.stdout and parent.stdout.read(1)
        [child] = psutil.Process(parent.pid).children()
        yield parent, child
    finally:
        os.killpg(parent.pid, signal.SIGKILL) if parent.poll() is None else None
        parent.communicate()


def gone_within(process: psutil.Process, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.02)
    return False


def only_sentence(stderr: bytes) -> str:
    """Returns the one line on stderr, which is EdgeSpec's."""
    lines = stderr.decode().splitlines()
    assert len(lines) == 1, stderr
    assert lines[0].startswith("edgespec: ")
    return lines[0]


# ---- the whole, with real processes -----------------------------------------------------------------------


@posix
def test_a_killed_engine_is_reported_in_a_sentence(long_winded: Path) -> None:
    with talking(long_winded) as (parent, child):
        child.kill()
        _, err = parent.communicate(timeout=10)
        assert "the engine was killed (SIGKILL)" in only_sentence(err)
        assert parent.returncode == 1


@pytest.mark.sample(1)
@posix
@pytest.mark.parametrize("name", ["SIGSEGV", "SIGABRT"])
def test_a_crashed_engine_is_reported_in_a_sentence(long_winded: Path, name: str) -> None:
    with talking(long_winded) as (parent, child):
        child.send_signal(getattr(signal, name))
        _, err = parent.communicate(timeout=10)
        assert f"llama.cpp aborted ({name})" in only_sentence(err)
        assert parent.returncode == 1


@posix
def test_the_engine_ends_when_its_parent_is_killed_and_leaves_nothing(
    long_winded: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(home))
    with talking(long_winded) as (parent, child):
        assert list(home.glob("edgespec-*"))
        parent.kill()
        assert gone_within(child, 2.0)
        assert not list(home.glob("edgespec-*"))


@posix
def test_ending_the_parent_ends_the_engine(long_winded: Path) -> None:
    with talking(long_winded) as (parent, child):
        parent.terminate()
        _, err = parent.communicate(timeout=10)
        assert b"Traceback" not in err
        assert parent.returncode not in (0, -signal.SIGABRT)
        assert gone_within(child, 2.0)


@posix
def test_ctrl_c_keeps_what_was_generated_and_ends_with_130(long_winded: Path) -> None:
    with talking(long_winded) as (parent, child):
        time.sleep(0.2)
        os.killpg(parent.pid, signal.SIGINT)  # as a terminal does: to both
        out, err = parent.communicate(timeout=10)
        assert parent.returncode == isolate.INTERRUPTED == 130
        assert len(out) > 20
        assert out.endswith(b"\n")
        assert b"Traceback" not in err
        assert b"tok/s" in err  # the figures come all the same
        assert gone_within(child, 2.0)


@posix
def test_ctrl_c_before_the_first_word_ends_with_130(long_winded: Path) -> None:
    command = [*EDGESPEC, "run", "--target", str(long_winded), "--no-draft"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    ) as parent:  # waits for the prompt on standard input
        deadline = time.monotonic() + 10
        while not psutil.Process(parent.pid).children() and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(0.5)
        os.killpg(parent.pid, signal.SIGINT)
        _, err = parent.communicate(timeout=10)
        assert parent.returncode == 130
        assert err == b""


@posix
def test_a_model_on_which_llama_cpp_aborts_is_reported_in_a_sentence(tmp_path: Path) -> None:
    """Two tokens of one text: llama.cpp asserts that there are none, and ends its process."""
    vocabulary = tiny_gguf.make_vocabulary()
    texts = (*vocabulary.texts[:400], vocabulary.texts[399], *vocabulary.texts[401:])
    twice = tiny_gguf.Vocabulary(texts, vocabulary.types, vocabulary.merges, vocabulary.bos, vocabulary.eos)
    path = tiny_gguf.write_llama(tmp_path / "twice.gguf", vocab=twice)
    command = [*EDGESPEC, "run", "--target", str(path), "--no-draft", "hello"]
    done = subprocess.run(command, capture_output=True, timeout=60)
    printed = only_sentence(done.stderr)
    assert "llama.cpp aborted (SIGABRT)" in printed
    assert "GGML_ASSERT" in printed  # its own words, for who can make something of them
    assert "download it again" in printed
    assert done.stdout == b""
    assert done.returncode == 1


# ---- the pieces -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 1, 2, 130])
def test_an_exit_code_goes_through(code: int) -> None:
    assert isolate.explain(code, "") == code


@posix
def test_deaths_by_signal_have_names_and_last_words() -> None:
    noise = "loading\n/src/ggml.c:12: GGML_ASSERT(n > 0) failed\n\n"
    with pytest.raises(EngineDiedError, match=r"SIGABRT.*GGML_ASSERT\(n > 0\) failed"):
        isolate.explain(-signal.SIGABRT, noise)
    thrown = "terminate called after throwing an instance of 'std::out_of_range'\n  what():  _Map_base::at\n"
    with pytest.raises(EngineDiedError, match=r"what\(\):  _Map_base::at"):
        isolate.explain(-signal.SIGABRT, thrown)
    with pytest.raises(EngineDiedError, match=r"SIGSEGV\): it gave no reason"):
        isolate.explain(-signal.SIGSEGV, "")
    with pytest.raises(EngineDiedError, match="lack of memory"):
        isolate.explain(-signal.SIGKILL, "")
    assert isolate.explain(-signal.SIGINT, "") == 130


def test_an_error_is_reported_on_one_line_with_its_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    def fail(error: EdgeSpecError) -> int:
        raise error

    assert isolate.reporting(lambda: fail(SettingError("n is 0"))) == 2
    assert isolate.reporting(lambda: fail(EdgeSpecError("no"))) == 1
    assert isolate.reporting(lambda: 7) == 7
    assert capsys.readouterr() == ("", "edgespec: n is 0\nedgespec: no\n")


@posix
def test_the_first_ctrl_c_is_a_wish_and_the_second_a_demand() -> None:
    before = signal.getsignal(signal.SIGINT)
    try:
        with interruptible() as interrupted:
            assert not interrupted()
            signal.raise_signal(signal.SIGINT)
            assert interrupted()
            assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL  # a second one ends the process
        assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
        with interruptible() as interrupted:
            assert not interrupted()  # the next answer begins anew
    finally:
        signal.signal(signal.SIGINT, before)


SERVE = """
import os, sys
from edgespec.system import isolate

def work():
    os.write(2, b"noise of C code\\n")
    print("for the user", file=sys.stderr)
    print("text")
    return 3

sys.exit(isolate.serve_in_child(work))
"""


def test_the_noise_of_c_code_is_kept_from_the_terminal(tmp_path: Path) -> None:
    noise = tmp_path / "noise"
    environment = {**os.environ, "EDGESPEC_NOISE_FILE": str(noise)}
    done = subprocess.run([sys.executable, "-c", SERVE], env=environment, capture_output=True, timeout=60)
    assert done.returncode == 3
    assert done.stdout.split() == [b"text"]
    assert done.stderr.decode().splitlines() == ["for the user"]
    assert noise.read_text() == "noise of C code\n"


@posix
def test_no_temporary_file_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    missing = [*EDGESPEC, "run", "--target", str(tmp_path / "none.gguf"), "hello"]
    done = subprocess.run(missing, capture_output=True, timeout=60)
    assert "there is no file" in only_sentence(done.stderr)
    assert list(tmp_path.iterdir()) == []


@posix
def test_lack_of_memory_is_named_where_the_kernel_counted_it(tmp_path: Path) -> None:
    """Every SIGKILL was told as lack of memory, somebody's `kill -9` too."""
    counted = tmp_path / "vmstat"
    counted.write_text("pgfree 1\noom_kill 3\n")
    assert isolate.kills_for_memory(counted) == 3 and isolate.kills_for_memory(tmp_path / "absent") is None
    for now, before, words in (
        (3, 3, "by a person or another program"),
        (4, 3, "the system killed the engine"),
        (None, 3, "most likely for lack of memory"),
        (3, None, "most likely for lack of memory"),
    ):
        found = isolate.cause_of_death(-signal.SIGKILL, "", before, kills=lambda now=now: now)
        assert words in (found or "")


@posix
def test_last_words_for_a_reader_that_has_gone_are_no_error() -> None:
    """What was still buffered at the end was written by Python itself, which told of the broken pipe."""
    code = "import time; from edgespec.system import isolate\n"
    code += "def work(): print('last'); time.sleep(0.5); return 0\n"
    code += "raise SystemExit(isolate.reporting(work))"
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=buffered
    ) as process:
        assert process.stdout and process.stderr
        process.stdout.close()
        assert process.stderr.read() == b"" and process.wait(20) == 0
