"""Layers on other machines, for real: two RPC servers on loopback, a split target, one that is killed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import tiny_gguf
from fake_machine import free_address
from served import Served, served, until

from edgespec.core.request import Request
from edgespec.engine.pair import Pair
from edgespec.llama.log import listening
from edgespec.llama.remote import has_rpc
from edgespec.memory.at_load import pair_fit
from edgespec.pairs.placement import ALL_LAYERS, Placement
from edgespec.pairs.settings import PairSettings
from edgespec.sampling.sampler import Sampling
from edgespec.system.machines import absent, ask
from edgespec_models.fit.need import RAM
from edgespec_models.grow import grow
from edgespec_models.grow.source import ModelShape

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not has_rpc(), reason="this build of llama.cpp has no RPC: build it with -DGGML_RPC=on"
    ),
]
PROMPTS = ("def fibonacci(n):", "What is a list comprehension?", "import json\n\n")
GREEDY, SEEDED = Sampling(temperature=0), Sampling(temperature=0.8)
SHAPE = ModelShape(n_vocab=8192, d=640, layers=14, n_head=10, n_kv=5, head_dim=64, ffn=1280)
SMALL = ModelShape(n_vocab=8192, d=192, layers=4, n_head=4, n_kv=4, head_dim=64, ffn=512)
Files = tuple[Path, Path]
PLACEMENTS = (Placement(ALL_LAYERS), Placement((1,)), Placement(None, (("attn_(q|k|v)", "CPU"),)))
MIXTURES = (tiny_gguf.write_experts,)


@dataclass(slots=True)
class Lent:
    """A machine that `edgespec rpc` lends."""

    address: str
    process: subprocess.Popen[bytes]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def lent(address: str = "") -> Iterator[Lent]:
    address = address or free_address()
    command = [
        sys.executable,
        "-m",
        "edgespec",
        "rpc",
        "--port",
        address.rpartition(":")[2],
        "--threads",
        "1",
    ]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        until(lambda: not absent([address], 1.0), 30)
        yield Lent(address, process)
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def machines() -> Iterator[tuple[str, ...]]:
    with lent() as one, lent() as two:
        yield one.address, two.address


@pytest.fixture(scope="module", params=["embedded", "grown"])
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Files:
    from edgespec_models import tiny

    pair = tiny.target_path(), tiny.draft_path()
    if request.param == "embedded":
        return pair
    return grow.grow_pair(*pair, tmp_path_factory.mktemp("grown"), grow.GrowSpec("rpc", "F16", SHAPE, SMALL))


def _texts(files: Files, sampling: Sampling, settings: PairSettings, drafter: str) -> tuple[list[str], int]:
    """Returns a text for each prompt, and how many tokens were drafted."""
    request = Request(sampling=sampling, max_tokens=48, seed=7, drafter=drafter, draft_length=None)
    texts, drafted = [], 0
    with Pair(*files, settings) as pair:
        for prompt in PROMPTS:
            rounds = list(pair.generate(pair.prompt_tokens(prompt), request))
            texts.append("".join(round_.text for round_ in rounds))
            drafted += sum(round_.drafted for round_ in rounds)
    return texts, drafted


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
@pytest.mark.parametrize("layers", [-1, 5], ids=["all layers", "five layers"])
def test_a_split_target_says_what_it_says_here(
    files: Files, machines: tuple[str, ...], sampling: Sampling, layers: int
) -> None:
    here = PairSettings(n_ctx=256, threads=1, remember=False)
    there = PairSettings(n_ctx=256, threads=1, remember=False, rpc=machines, n_gpu_layers=layers)
    plain, _ = _texts(files, sampling, here, "none")
    texts, drafted = _texts(files, sampling, there, "auto")
    assert texts == plain and drafted


def test_llama_cpp_says_what_a_target_takes_on_each_machine(
    tiny_target: Path, tiny_draft: Path, machines: tuple[str, ...]
) -> None:
    settings = PairSettings(n_ctx=256, rpc=machines, tensor_split=(1.0, 2.0))
    fit = pair_fit(tiny_target, tiny_draft, settings)
    weights = [fit.choice.needs["target"].devices[machine].weights for machine in machines]
    assert fit.fits and weights[1] > weights[0] > 0
    assert set(fit.choice.needs["draft"].devices) == {RAM}


@pytest.mark.parametrize("write", MIXTURES, ids=lambda write: write.__name__)
@pytest.mark.parametrize("placed", PLACEMENTS, ids=["all experts here", "one layer's", "attention"])
def test_experts_stay_here_while_the_rest_is_on_a_card(
    write: Callable[[Path], Path], placed: Placement, machines: tuple[str, ...], tmp_path: Path
) -> None:
    """The machine stands in for a card. What was planned is what each place then holds."""
    model = write(tmp_path / "mixture.gguf")
    request = Request(sampling=GREEDY, max_tokens=32, seed=7, drafter="lookup", draft_length=None)

    def text(settings: PairSettings) -> str:
        with Pair(model, None, settings) as pair:
            prompt = pair.prompt_tokens(PROMPTS[0])
            return "".join(round_.text for round_ in pair.generate(prompt, request))

    here = PairSettings(n_ctx=128, threads=1, remember=False)
    there = replace(here, rpc=machines[:1], placement=placed)
    plain = text(here)
    with listening() as said:
        assert text(there) == plain
    held = re.findall(r"load_tensors: +RPC\S* model buffer size = +([0-9.]+) MiB", "\n".join(said))
    need = pair_fit(model, None, there).choice.needs["target"]
    weights = {name: parts.weights for name, parts in need.devices.items()}
    assert weights[machines[0]] / 2**20 == pytest.approx(sum(map(float, held)), rel=0.02, abs=0.011)
    assert 0 < weights[RAM] and sum(weights.values()) < model.stat().st_size


def test_the_other_machine_is_there_again_for_the_next(tiny_target: Path, machines: tuple[str, ...]) -> None:
    """A server has one client at a time; who closes a pair lets go of it."""
    with Pair(tiny_target, None, PairSettings(n_ctx=64, remember=False, rpc=machines)):
        assert all(not absent([machine], 1.0) for machine in machines), "connections are taken, and wait"
    assert all(ask(machine) for machine in machines)


def _stream(server: Served, n: int) -> Iterator[str]:
    body = {"prompt": "def f(x):", "max_tokens": n, "stream": True, "temperature": 0, "ignore_eos": True}
    request = urllib.request.Request(
        f"{server.url}/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        for line in answer:
            if line.startswith(b"data: "):
                yield line.decode()


def _healthy(server: Served) -> bool:
    return server.ask("/health").status == 200


@pytest.mark.parametrize("busy", [True, False], ids=["in mid-stream", "while nobody asks"])
def test_a_killed_machine_ends_streams_at_once_is_named_and_is_waited_for(busy: bool, tmp_path: Path) -> None:
    with ExitStack() as opened:
        one, two = opened.enter_context(lent()), opened.enter_context(lent())
        rpc = f"{one.address},{two.address}"
        server = opened.enter_context(served(tmp_path, "embedded", "--rpc", rpc, "--ctx", "2048"))
        before = server.worker.pid
        lines = _stream(server, 1500)
        assert next(lines) and next(lines)
        if busy:
            two.kill()
            killed = time.monotonic()
            *_, last = lines
            assert time.monotonic() - killed < 1.0
            assert "error" in last and f"lost the machine of --rpc at {two.address}" in last
        else:
            lines.close()  # type: ignore[attr-defined]
            until(lambda: server.metric("llamacpp:requests_processing") == 0)
            two.kill()
        until(lambda: not _healthy(server), 5)
        assert f"waiting for the machine of --rpc at {two.address}" in server.chat().error["message"]
        assert one.process.poll() is None and server.process.poll() is None
        opened.enter_context(lent(two.address))
        until(lambda: _healthy(server), 20)
        assert server.worker.pid != before
        assert server.chat("hello", max_tokens=4).status == 200


def test_a_command_says_which_machine_it_lost(tmp_path: Path) -> None:
    with lent() as one, lent() as two:
        flags: Sequence[str] = ("--pair", "embedded", "--rpc", f"{one.address},{two.address}", "-n", "1500")
        command = [sys.executable, "-m", "edgespec", "run", *flags, "--temp", "0", "--raw", "def f(x):"]
        command += ["--logit-bias", "0=-100", "--logit-bias", "1=-100", "--logit-bias", "2=-100"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
            assert run.stdout and run.stderr
            run.stdout.read(40)
            two.kill()
            said = run.stderr.read()
        assert run.returncode == 1
        assert said.strip().splitlines()[-1] == f"edgespec: lost the machine of --rpc at {two.address}"


def test_a_machine_that_is_not_there_is_named_at_once(tmp_path: Path) -> None:
    gone = free_address()
    command = [sys.executable, "-m", "edgespec", "run", "--pair", "embedded", "--rpc", gone, "hello"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith(f"edgespec: the machine of --rpc at {gone} cannot be used: nothing listens")
