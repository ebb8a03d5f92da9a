"""`edgespec trim`: a draft of fewer tokens, written whole, measured, and kept only if it pays."""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from commands import EDGESPEC, in_process, posix

from edgespec.commands import trim
from edgespec.commands.bench.figures import Ratio
from edgespec.commands.trim import DraftContest
from edgespec_models.gguf.header import read_file
from edgespec_models.gguf.trim import BY_TOKEN, TOKENS, most_used, write_with_tokens


def trial(low: float) -> DraftContest:
    return DraftContest((0.002, 0.001), (0.6, 0.58), Ratio(low + 0.1, low, low + 0.2, 15))


def test_the_most_used_tokens_and_all_that_are_no_words_stay(tiny_draft: Path, tmp_path: Path) -> None:
    header = read_file(tiny_draft)
    types = list(header.metadata["tokenizer.ggml.token_type"])  # type: ignore[call-overload]
    kept = most_used(header, 1000)
    assert kept == sorted(kept) and sum(types[token] == 1 for token in kept) == 1000
    assert {token for token, kind in enumerate(types) if kind != 1} <= set(kept)
    write_with_tokens(tiny_draft, tmp_path / "less.gguf", kept)
    less = read_file(tmp_path / "less.gguf")
    tokens = header.metadata["tokenizer.ggml.tokens"]
    assert less.metadata["tokenizer.ggml.tokens"] == [tokens[token] for token in kept]  # type: ignore[index]
    rows = {tensor.name: tensor.shape for tensor in less.tensors}
    assert max(rows["token_embd.weight"]) == len(kept)
    assert not list(tmp_path.glob("*.part"))


def test_tokens_that_nobody_uses_go(tiny_draft: Path) -> None:
    """Vocabularies are padded; what pads them was kept, and was most of what one of them had."""
    header = read_file(tiny_draft)
    types = [1, 3, 5, 1, 6, 5, 1]
    named = {**header.metadata, TOKENS: list("abcdefg"), BY_TOKEN[0]: types}
    assert most_used(replace(header, metadata=named), 2) == [0, 1, 3, 4]
    assert most_used(replace(header, metadata=named), 9) == [0, 1, 3, 4, 6]


@pytest.mark.parametrize(("low", "code", "said"), [(1.02, 0, "kept as"), (0.98, 1, "not kept")])
def test_it_is_kept_only_where_it_is_shown_to_be_faster(
    low: float,
    code: int,
    said: str,
    tiny_target: Path,
    tiny_draft: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trim, "_compare", lambda *_: trial(low))
    output = tmp_path / "less.gguf"
    words = ["trim", tiny_draft, "--target", tiny_target, "--tokens", "3000", "-o", output]
    ended, out, err = in_process(*words)
    assert (ended, output.exists()) == (code, code == 0), err
    assert said in out and "accepted: 0.60 to 0.58" in out


def test_both_drafts_answer_the_same_prompts(tiny_target: Path, tiny_draft: Path, tmp_path: Path) -> None:
    """The measurement itself, for real; whether it pays here is not asked."""
    output = tmp_path / "less.gguf"
    write_with_tokens(tiny_draft, output, most_used(read_file(tiny_draft), 3000))
    found = trim._compare(tiny_target, tiny_draft, output, 1, 2.0, 3)
    assert 3 <= found.speed.n <= 14 and 0.1 < found.speed.value < 10 and min(found.step_s) > 0
    assert 0.2 < found.accepted[1] <= found.accepted[0] + 0.1, "fewer tokens, hardly fewer right guesses"


def test_a_machine_that_is_too_slow_ends_it_in_a_sentence(
    tiny_target: Path, tiny_draft: Path, tmp_path: Path
) -> None:
    """Beside other programs it never ended: no answer was bounded in time, nor all of them."""
    output = tmp_path / "less.gguf"
    words = ["trim", tiny_draft, "--target", tiny_target, "--tokens", "3000", "-o", output]
    code, _, err = in_process(*words, "--minutes", "0.0001")
    assert code == 1 and "answered 0 prompts that count" in err and "--minutes" in err
    assert not list(tmp_path.iterdir())


def started(*words: str | Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*EDGESPEC, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


@posix
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_end_leaves_no_draft_that_was_not_measured(
    number: signal.Signals, tiny_target: Path, tiny_draft: Path, tmp_path: Path
) -> None:
    """A trim that was killed left its result under the name of one that pays."""
    output = tmp_path / "less.gguf"
    words = ["trim", tiny_draft, "--target", tiny_target, "--tokens", "3000", "-o", output]
    with started(*words) as process:
        assert process.stdout
        assert b"tokens:" in process.stdout.readline()  # it stands aside, and is measured
        at_work = psutil.Process(process.pid).children(recursive=True)
        os.killpg(process.pid, number)
        _, err = process.communicate(timeout=30)
    psutil.wait_procs(at_work, timeout=10)  # a process that was killed is there for a moment still
    assert process.returncode != 0 and b"Traceback" not in err and not output.exists()
    assert [path.suffix for path in tmp_path.iterdir()] == [".part"] * (number == signal.SIGKILL)
    code, _, _ = in_process(*words, "--anyway")
    assert code == 0 and list(tmp_path.iterdir()) == [output], "the next start clears what was left"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--tokens", "5"], "keep 512 at least"),
        (["--tokens", "9999"], "fewer than the 4,052"),
        (["--tokens", "512"], "keep more tokens"),
        (["--minutes", "nan"], "--minutes is nan"),
        (["-o", "/nowhere/x.gguf"], "there is no folder"),
    ],
)
def test_what_cannot_be_is_told_and_nothing_is_left(
    flags: list[str], said: str, tiny_target: Path, tiny_draft: Path, tmp_path: Path
) -> None:
    output = [] if "-o" in flags else ["-o", tmp_path / "less.gguf"]
    code, _, err = in_process("trim", tiny_draft, "--target", tiny_target, *flags, *output)
    assert code != 0 and said in err and "Traceback" not in err
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_there_is_not_overwritten(tiny_target: Path, tiny_draft: Path, tmp_path: Path) -> None:
    output = tmp_path / "mine.gguf"
    output.write_bytes(b"mine")
    code, _, err = in_process("trim", tiny_draft, "--target", tiny_target, "--tokens", "3000", "-o", output)
    assert code != 0 and "already exists" in err and output.read_bytes() == b"mine"
