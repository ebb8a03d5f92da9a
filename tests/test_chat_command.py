"""`edgespec chat` as a script, a screen reader or a pipe uses it.

Most attach to one engine that runs for the whole file, as a second chat of a person does.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import served as serving
import tiny_gguf
from commands import EDGESPEC, edgespec, in_process, posix, refused
from in_terminal import Terminal

from edgespec.pairs.store import open_store, standing_in
from edgespec_models.shelf.store import EMBEDDED, InstalledModel, InstalledPair

CUT = "(stopped at the length limit)"
NO_END = [f"--logit-bias={token}=-inf" for token in (509, 510, 511)]
ONE_LINE = [f"--logit-bias={token}=-inf" for token in range(32)]
WORDS_ALONE = [f"--logit-bias={token}=-inf" for token in range(256)]
QUICK = ["-n", "24", "--seed", "1"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("chats")


@pytest.fixture(scope="module")
def target(folder: Path) -> Path:
    return tiny_gguf.write_llama(folder / "target.gguf", context_length=4096, dtype="Q8_0")


@pytest.fixture(scope="module")
def engine(folder: Path, target: Path) -> Iterator[Path]:
    """The state folder of an engine that runs."""
    state = folder / "state"
    with serving.served(folder, "--target", str(target), "--ctx", "200", EDGESPEC_STATE_DIR=str(state)):
        yield state


def chat(engine: Path | None, *arguments: str | Path, stdin: bytes = b"") -> str:
    """Does what `edgespec chat` does, in this process; returns what it wrote to stdout."""
    with at(engine):
        code, out, err = in_process("chat", *QUICK, *NO_END, *arguments, stdin=stdin)
    assert code == 0 and err in ("", CUT + "\n")
    return out


@contextmanager
def at(engine: Path | None) -> Iterator[None]:
    """Has chats find this engine."""
    with pytest.MonkeyPatch.context() as patch:
        if engine:
            patch.setenv("EDGESPEC_STATE_DIR", str(engine))
        yield


def lines(engine: Path, stdin: bytes, *arguments: str) -> tuple[list[str], list[str]]:
    """Talks through a pipe; returns the answers (one line each: the model cannot say more) and stderr."""
    with at(engine):
        code, out, err = in_process("chat", *QUICK, *NO_END, *ONE_LINE, *arguments, stdin=stdin)
    assert code == 0, err
    return out.splitlines(), [line for line in err.splitlines() if line != CUT]


# ---- lines ------------------------------------------------------------------------------------------------


def test_earlier_turns_count_until_clear(engine: Path) -> None:
    answers, answer = lines(engine, b"first\n\nsecond\n/clear\nsecond\ncaf\xe9 \xff\n", "-q")
    assert len(answers) == 4 and all(answers), "an empty line is not a question, and any bytes are one"
    assert answers[1] != answers[2]
    assert answer == ["New chat.", "edgespec: 2 bytes are not UTF-8 text: the model gets \ufffd instead"]
    assert lines(engine, b"second\n", "-q")[0] == [answers[2]]


def test_figures_are_reported_next_to_the_answers(engine: Path) -> None:
    answers, answer = lines(engine, b"hello\nand then?\n")
    assert len(answers) == 2
    assert sum("tok/s" in line for line in answer) == 2


def test_a_full_context_leaves_old_messages_out_and_refuses_what_does_not_fit_alone(engine: Path) -> None:
    answers, answer = lines(engine, b"hello to you\n" * 6 + b"word " * 300 + b"\nhello again\n", "-q")
    assert len(answers) == 7
    assert any("no longer fit and are left out" in line for line in answer)
    (refusal,) = [line for line in answer if line.startswith("edgespec: ")]
    assert "the prompt has 323 tokens" in refusal and " 200" in refusal, "both counts"


# ---- one answer -------------------------------------------------------------------------------------------


def test_a_prompt_prints_just_its_answer_and_can_be_gone_on_with(engine: Path) -> None:
    state = {"EDGESPEC_STATE_DIR": str(engine)}
    piped = edgespec("chat", *QUICK, *NO_END, "-p", "-", stdin=b"tell me about words\n", **state)
    assert (piped.returncode, piped.stderr.decode().splitlines()) == (0, [CUT])
    again = chat(engine, "-p", "tell me about words")
    assert again == piped.stdout.decode() and again.endswith("\n")
    assert chat(engine, "-c", "-p", "more") != chat(engine, "-p", "more", "--no-save")
    first, second = chat(None, "--list").splitlines()
    assert first.endswith("tell me about words")
    chat(engine, "-p", "and more", "--session", first.split()[0])
    assert chat(None, "--list", "and more").splitlines() == [f"{first} | and more"]
    assert second.split()[0] != first.split()[0]


@posix
def test_a_reader_that_has_seen_enough_is_no_error(engine: Path) -> None:
    command = [*EDGESPEC, "chat", "-p", "hello", *NO_END]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "EDGESPEC_STATE_DIR": str(engine)},
    ) as process:
        assert process.stdout and process.stderr
        assert len(process.stdout.read(5)) == 5
        process.stdout.close()  # as `head -c 5` does
        assert process.stderr.read().decode().splitlines() in ([], [CUT])
        assert process.wait(20) == 0


@pytest.mark.slow
@posix
def test_closed_and_full_streams_are_reported_in_a_sentence(engine: Path) -> None:
    words = [*EDGESPEC, "chat", *QUICK]

    def done(redirected: str, *more: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            ["sh", "-c", f'"$@" {redirected}', "sh", *words, *more],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=30,
            env={**os.environ, "EDGESPEC_STATE_DIR": str(engine)},
        )

    empty = done("<&-")
    assert (empty.returncode, empty.stdout, empty.stderr) == (0, b"", b"")
    closed = done(">&-", "-p", "hello")
    assert closed.returncode == 1 and closed.stderr.startswith(b"edgespec: standard output is closed")
    if Path("/dev/full").exists():
        full = done(">/dev/full", "-p", "hello")
        assert full.returncode == 1 and full.stderr.count(b"\n") == 1
        assert full.stderr.startswith(b"edgespec: the output cannot be written")


# ---- what is refused --------------------------------------------------------------------------------------


NONSENSE = [
    (["--temperature", "nan"], "temperature is nan"),
    (["--temperature", "-1"], "temperature is -1"),
    (["--top-k", "-1"], "top_k is -1"),
    (["--top-p", "1.5"], "top_p is 1.5"),
    (["--repeat-penalty", "0"], "repeat_penalty is 0"),
    (["--logit-bias", "five"], "--logit-bias 'five' is not understood"),
    (["--logit-bias", "5=nan"], "logit_bias of token 5 is nan"),
    (["--logit-bias=-5=1"], "a token of logit_bias is -5"),
    (["--dry-multiplier", "-1"], "dry_multiplier is -1"),
    (["--dry-breaker", ""], "dry_sequence_breakers is"),
    (["--samplers", "luck"], "samplers names 'luck'"),
    (["-n", "0"], "-n is 0"),
    (["--stop", ""], "the stop strings are"),
    (["--draft-length", "99"], "the draft length is 99"),
    (["--threads", "0"], "the number of threads is 0"),
    (["--ctx", "1"], "the context length is 1"),
    (["--grow", "0.6B-F16"], "leave out --target"),
    (["--endpoint", "http://"], "is not an address"),
    (["--endpoint", "http://127.0.0.1"], "--endpoint brings its own model"),
    (["--target", ""], "--target names no file"),
    (["--target", "none.gguf"], "there is no file none.gguf"),
    (["--endpoint", "x", "--api-key", "-"], "prompts in the terminal, but there is none"),
    (["--endpoint", "x", "--api-key-file", "none"], "--api-key-file none cannot be read"),
]


@pytest.mark.parametrize("wrong, named", NONSENSE)
def test_nonsense_is_refused_in_one_sentence_before_anything_starts(
    target: Path, wrong: list[str], named: str
) -> None:
    files = [] if "http://" in wrong or "x" in wrong else ["--target", target]
    assert named in refused("chat", *files, *wrong, "-p", "hello")


def test_a_pair_may_be_named_without_a_flag(home: Path) -> None:
    assert "no pair 'qwen' is installed" in refused("chat", "qwen", "-p", "hello")
    assert "no pair 'qwen' is installed" in refused("chat", "--pair", "qwen", "-p", "hello")


def test_a_session_that_is_not_there_is_reported() -> None:
    for flags, named in ((["-c"], "there is no chat to continue yet"), (["-c", "x"], "no chat 'x'")):
        assert named in refused("chat", "-p", "hello", *flags, code=1)


def test_a_wrong_setting_is_refused_where_a_program_asks(home: Path) -> None:
    (home / ".config" / "edgespec").mkdir(parents=True)
    (home / ".config" / "edgespec" / "settings.toml").write_text("[sampling]\ntemperature = 'hot'\n")
    assert "settings.toml: sampling.temperature is 'hot'" in refused("chat", "-p", "hello")


def test_a_default_pair_that_has_gone_keeps_no_chat_from_starting(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything but `edgespec pull` refused, until somebody found out how to name another pair."""
    monkeypatch.setenv("EDGESPEC_STATE_DIR", str(tmp_path / "state"))
    size, gone = target.stat().st_size, InstalledModel((str(tmp_path / "gone.gguf"),), 1000)
    store, files = open_store(), InstalledModel((str(target),), size)
    store.add(InstalledPair("lost", gone, None, "imported", 2.0))
    other = standing_in()
    assert other and other[0] == EMBEDDED and other[1].endswith("the embedded pair answers in its place")
    store.add(InstalledPair("whole", files, None, "imported", 1.0), default=False)
    code, out, err = in_process("chat", *QUICK, *NO_END, *ONE_LINE, stdin=b"hello\n")
    assert code == 0 and len(out.splitlines()) == 1, err
    assert "pair lost lacks gone.gguf" in err and "pair whole answers in its place" in err
    assert "gone.gguf" in refused("chat", "-p", "hello", code=1), (
        "a program gets the model that it expects, or none"
    )
    store.add(InstalledPair("lost", files, None, "imported", 3.0))
    assert standing_in() is None


# ---- a terminal -------------------------------------------------------------------------------------------


@posix
def test_a_conversation_on_a_terminal_without_a_screen(target: Path) -> None:
    """Also the one that starts an engine of its own, and ends it."""
    endless = [*NO_END, *WORDS_ALONE, "--threads", "1", "--seed", "1", "-n", "3900", "--no-draft"]
    with Terminal("chat", "--plain", "--target", target, *endless) as terminal:
        terminal.wait_for("> ", seconds=40)
        assert "Ctrl+C stops an answer" in terminal.shown
        assert "\033[" not in terminal.shown.replace("\033[?2004h", ""), "no cursor movements, no colours"
        terminal.type("half a ques")
        terminal.wait_for("half a ques")
        time.sleep(0.3)  # a signal while Python's readline echoes a key is seen at the next key only
        terminal.type("\x03")
        terminal.wait_for("(Ctrl+D quits)")
        terminal.wait_for("> ")
        terminal.type("hello there\n")
        terminal.wait_for("hello there\r\n")
        terminal.wait_for(" ")
        time.sleep(0.3)
        terminal.type("\x03")  # Ctrl+C while it talks
        terminal.wait_for("(interrupted)")
        terminal.wait_for("tok/s")
        terminal.wait_for("> ")
        terminal.type("/help\n")
        terminal.wait_for("/clear: start a new chat")
        terminal.wait_for("> ")
        terminal.type("\x04")  # Ctrl+D
        assert terminal.process.wait(20) == 0
        assert "Traceback" not in terminal.shown


def test_a_chat_is_exported_as_it_was_written(engine: Path, tmp_path: Path) -> None:
    name = str(tmp_path / "chat.json")
    answers, answer = lines(engine, f"hello\n/export {name}\n".encode(), "-q")
    turns = json.loads((tmp_path / "chat.json").read_text())["turns"]
    assert [turn["text"] for turn in turns] == ["hello", *answers]
    assert answer == [f"Written: {name}"]
