"""llama-server as the benchmarks' peer: started, asked, timed and ended, on a fake of its protocol."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keeper
import numpy as np
import peer_command
import psutil
import pytest
from peer import Completion, LlamaServer
from peer_command import PeerError, PeerSettings, command
from peer_taker import PeerTaker, peer_sample

from edgespec.measure.lines import Line, Unit
from edgespec.measure.prompts import Prompt
from edgespec.measure.takers import Asked
from edgespec.sampling.sampler import Sampling

pytestmark = pytest.mark.slow  # it drives the benchmarks alone
posix = pytest.mark.skipif(os.name != "posix", reason="the fake is a script with a first line for the system")
GREEDY = Sampling(temperature=0.0)


@pytest.fixture(autouse=True)
def nothing_remembered() -> None:
    """What a program said of itself is asked anew: the fake says other things in other tests."""
    peer_command.said.cache_clear()


@pytest.fixture
def logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[Any]]:
    log = tmp_path / "log"
    monkeypatch.setenv("FAKE_LLAMA_LOG", str(log))
    return lambda: [json.loads(line) for line in log.read_text().splitlines()]


def settings(program: Path, **changes: Any) -> PeerSettings:
    return PeerSettings(program, Path("big.gguf"), **{"draft": Path("small.gguf"), "threads": 3, **changes})


def gone(pid: int) -> bool:
    """True when the keeper and all below it have ended, in a second or so."""
    until = time.monotonic() + 10
    while time.monotonic() < until:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.02)
    return False


# ---- what it is told --------------------------------------------------------------------------------------


@posix
def test_flags_are_those_of_the_version_at_hand(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new = command(settings(program, draft_length=8, n_gpu_layers=0), 99)
    assert new[:3] == [str(program), "--host", "127.0.0.1"]
    assert "--spec-type draft-simple" in " ".join(new)
    assert "--spec-draft-n-max 8" in " ".join(new)
    assert "--threads 3 --threads-batch 3" in " ".join(new)
    assert "--n-gpu-layers 0" in " ".join(new)
    peer_command.said.cache_clear()
    monkeypatch.setenv("FAKE_LLAMA", "old")
    old = " ".join(command(settings(program, draft_length=8), 99))
    assert "--draft-max 8" in old
    assert "--spec-type" not in old
    assert "--n-gpu-layers" not in old


@posix
def test_a_head_is_named_as_the_peer_names_it(program: Path) -> None:
    own = " ".join(command(settings(program, draft=None, head="mtp", draft_length=3), 99))
    assert "--spec-type draft-mtp --spec-draft-n-max 3" in own
    assert "--model-draft" not in own
    beside = " ".join(command(settings(program, head="eagle3"), 99))
    assert "--model-draft small.gguf --spec-type draft-eagle3" in beside
    with pytest.raises(PeerError, match="its --help lists no draft-dspark"):
        command(settings(program, head="dspark"), 99)


@posix
def test_without_a_draft_or_a_length_nothing_is_stated_of_them(program: Path) -> None:
    """The peer that was to decode plainly kept the head in the target's file, and its speed was a draft's."""
    for wanted in (settings(program, draft=None, draft_length=8), settings(program, head="mtp").plain):
        plain = " ".join(command(wanted, 99))
        assert "draft" not in plain.replace(str(program), "")
    assert "n-max" not in " ".join(command(settings(program), 99))


@posix
def test_tokens_sampling_and_seed_reach_the_peer_whole(
    program: Path, logged: Callable[[], list[Any]]
) -> None:
    sampling = Sampling(temperature=0.5, top_k=7, logit_bias={5: -1.5, 6: -float("inf")})
    with LlamaServer(settings(program)) as server:
        server.complete([1, 2, 3], sampling=sampling, max_tokens=9, seed=2**31 + 5, stop=["\n"])
    asked = logged()[-1]
    assert asked["path"] == "/completion"
    assert asked["prompt"] == [1, 2, 3]
    assert (asked["n_predict"], asked["seed"], asked["stop"]) == (9, 5, ["\n"])
    assert (asked["temperature"], asked["top_k"], asked["top_p"]) == (0.5, 7, 0.95)
    assert asked["logit_bias"] == [[5, -1.5], [6, False]]
    assert asked["cache_prompt"] is False


@posix
def test_flags_in_the_environment_are_kept_from_it(
    program: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """LLAMA_ARG_THREADS of the user's would have made a comparison of 2 threads with 8."""
    program.write_text(program.read_text().replace("exec", f"env >> {tmp_path}/env\nexec"))
    monkeypatch.setenv("LLAMA_ARG_THREADS", "8")
    with LlamaServer(settings(program)):
        assert "LLAMA_ARG" not in (tmp_path / "env").read_text()


# ---- what it answers --------------------------------------------------------------------------------------


@posix
def test_speed_is_that_of_its_own_timings_without_the_first_token(program: Path) -> None:
    with LlamaServer(settings(program)) as server:
        answer = server.complete([1, 2, 3, 4], sampling=GREEDY, max_tokens=21)
    assert answer.steps / answer.decode_s == pytest.approx(20 / 0.1)
    assert (answer.steps, answer.n_prompt, answer.prompt_s) == (20, 4, 0.02)
    assert (answer.drafted, answer.accepted) == (20, 15)
    assert (answer.text, answer.tokens, answer.finish_reason) == ("made up", (7,) * 21, "length")
    assert answer.wall_s > 0


@posix
def test_one_token_has_no_speed(program: Path) -> None:
    with LlamaServer(settings(program, draft=None)) as server:
        answer = server.complete("some text", sampling=GREEDY, max_tokens=1)
    assert answer.steps == 0
    assert (answer.drafted, answer.accepted) == (0, 0)


# ---- what goes wrong --------------------------------------------------------------------------------------


@posix
@pytest.mark.parametrize(
    "how, named",
    [
        ("dies", "llama-server ended while it was loading the models (code 1): error: failed to load model"),
        ("stranger", "does not look like a llama-server"),
    ],
)
def test_a_peer_that_does_not_start_is_reported_in_its_words(
    program: Path, monkeypatch: pytest.MonkeyPatch, how: str, named: str
) -> None:
    monkeypatch.setenv("FAKE_LLAMA", how)
    with pytest.raises(PeerError) as sentence:
        LlamaServer(settings(program))
    assert named in str(sentence.value)
    assert "\n" not in str(sentence.value)


@posix
@pytest.mark.parametrize(
    "how, named",
    [
        ("breaks", "ended while it answered (code 3): ggml error: the floor is gone"),
        ("refuses", "answered 400: the prompt is too long"),
        ("odd", "answered 200: {'content': 'hm'}"),
    ],
)
def test_a_peer_that_fails_at_a_request_is_reported_in_a_sentence(
    program: Path, monkeypatch: pytest.MonkeyPatch, how: str, named: str
) -> None:
    monkeypatch.setenv("FAKE_LLAMA", how)
    with LlamaServer(settings(program)) as server, pytest.raises(PeerError) as answer:
        server.complete([1], sampling=GREEDY, max_tokens=4)
    assert named in str(answer.value)


@posix
def test_a_program_that_cannot_be_started_is_reported(program: Path) -> None:
    program.write_bytes(b"\x7fELF and then nothing")
    with pytest.raises(PeerError, match="llama-server --help failed"):
        LlamaServer(settings(program))


@posix
@pytest.mark.parametrize("how", ["deaf", "slow"])
def test_a_cancellation_waits_neither_for_loading_nor_for_an_answer(
    program: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setenv("FAKE_LLAMA", how)
    asked = 0

    def enough() -> bool:
        nonlocal asked
        asked += 1
        return asked > 12

    started = time.monotonic()
    with pytest.raises(PeerError), LlamaServer(settings(program), cancelled=enough) as server:
        server.complete([1], sampling=GREEDY, max_tokens=4)
    assert time.monotonic() - started < 9


# ---- as samples -------------------------------------------------------------------------------------------

UNIT = Unit(4, Prompt("p", "code", "What?"), "greedy", 0, ())


@pytest.mark.parametrize("reason, n_tokens", [("length", 9), ("stop", 8)])
def test_an_answer_counts_its_tokens_without_the_end_token(reason: str, n_tokens: int) -> None:
    answer = Completion("text", (1,) * 9, 5, 0.2, 8, 0.4, 0.7, 6, 3, reason)
    got = peer_sample(answer, Line("greedy", "llama-server"), UNIT, seed=1)
    assert (got.n_tokens, got.steps, got.tok_per_s) == (n_tokens, 8, pytest.approx(20.0))
    assert (got.rounds, got.seconds, got.ttft_s) == ((), None, 0.2)


@posix
def test_each_draft_length_has_a_server_of_its_own_that_is_kept(
    program: Path, logged: Callable[[], list[Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plain, own = Line("sampled", "llama-server plain", plain=True), Line("sampled", "llama-server")
    Path("big.gguf").write_bytes(b"")
    Path("small.gguf").write_bytes(b"")
    asked = Asked(Sampling(temperature=0.8), max_tokens=12, seed=1)
    with PeerTaker(
        settings(program), [plain, own], asked, {"p": np.array([1, 2], np.int32)}, lambda: False
    ) as taker:
        taker.warm_up([plain, own])
        speeds = [sample.tok_per_s for line in (plain, own, plain) if (sample := taker(line, UNIT))]
    assert speeds == pytest.approx([100.0, 200.0, 100.0])
    starts = [x for x in logged() if isinstance(x, list)]
    requests = [x for x in logged() if isinstance(x, dict)]
    assert ["--model-draft" in start for start in starts] == [False, True]
    assert {request["temperature"] for request in requests} == {0.8}


# ---- how it ends ------------------------------------------------------------------------------------------


@posix
@pytest.mark.parametrize("how", ["", "stubborn"])
def test_closing_ends_the_server_and_twice_is_once(
    program: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setenv("FAKE_LLAMA", how)
    server = LlamaServer(settings(program))
    assert server.pid is not None
    below = psutil.Process(server.pid).children(recursive=True)
    assert below
    server.close()
    server.close()
    assert all(gone(process.pid) for process in below)


STARTER = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # nohup and some shells leave it ignored
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from peer import LlamaServer
from peer_command import PeerSettings
server = LlamaServer(PeerSettings(Path(sys.argv[1]), Path("big.gguf")))
print(server.pid, flush=True)
time.sleep(60)
"""


@posix
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_the_server_ends_with_its_starter_however_that_ended(program: Path, how: signal.Signals) -> None:
    words = [sys.executable, "-c", STARTER, str(program), str(Path(keeper.__file__).parent)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as starter:
        assert starter.stdout
        pid = int(starter.stdout.readline())
        below = psutil.Process(pid).children(recursive=True)
        starter.send_signal(how)
        starter.wait(10)
    assert below
    assert all(
        gone(process.pid) for process in [psutil.Process(pid), *below] if psutil.pid_exists(process.pid)
    )


def test_the_keeper_tells_a_program_that_cannot_start(capfd: pytest.CaptureFixture[str]) -> None:
    assert keeper.keep(["/nowhere/at/all"]) == keeper.NOT_STARTED
    assert "cannot be started" in capfd.readouterr().err
