"""Other machines: named, asked before llama.cpp meets them, and missed, on fakes of machine and registry."""

from __future__ import annotations

import asyncio
import ctypes
import re
import socket
import subprocess
import sys
import sysconfig
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from fake_machine import fake_machine, free_address

from edgespec.commands import cli, flags, loading, rpc
from edgespec.commands.doctor import machine_checks
from edgespec.engine.pair import Pair
from edgespec.errors import EdgeSpecError, MachineLostError, ModelUnsupportedError, SettingError
from edgespec.llama import memory_child, remote
from edgespec.llama.ggml import local_devices
from edgespec.llama.model import Model
from edgespec.local.engine_flags import engine_flags
from edgespec.memory import at_load
from edgespec.pairs.settings import PairSettings
from edgespec.protocol.messages import LoadRequest
from edgespec.server.supervisor import Supervisor
from edgespec.system import machines
from edgespec.system.isolate import cause_of_death
from edgespec.system.machines import LOST, absent, addresses, ask
from edgespec_models.fit.need import RAM, Device

# -- naming them


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("127.0.0.1:50052", ("127.0.0.1:50052",)),
        ("192.168.1.20", ("192.168.1.20:50052",)),
        (" 10.0.0.1:1 , 100.64.3.4:2", ("10.0.0.1:1", "100.64.3.4:2")),
        ("localhost:7", ("127.0.0.1:7",)),
    ],
)
def test_machines_are_named_by_addresses_of_ones_own_networks(text: str, found: tuple[str, ...]) -> None:
    assert addresses(text) == found


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not an address: write HOST:PORT"),
        ("10.0.0.1:1,", "not an address: write HOST:PORT"),
        ("10.0.0.1:0", "not an address: write HOST:PORT"),
        ("10.0.0.1:65536", "not an address: write HOST:PORT"),
        ("10.0.0.1:port", "not an address: write HOST:PORT"),
        ("[::1]:50052", "IPv4"),
        ("10.0.0.1:1,10.0.0.1:1", "twice"),
        (",".join(f"10.0.0.{i}" for i in range(17)), "16 at most"),
        ("8.8.8.8:50052", "outside loopback and private networks.*--rpc-public"),
        ("224.0.0.1:50052", "outside loopback"),
    ],
)
def test_what_names_no_machine_of_ones_own_is_refused(text: str, why: str) -> None:
    with pytest.raises(SettingError, match=why):
        addresses(text)


def _parsed(*argv: str) -> Namespace:
    parser = ArgumentParser()
    flags.add_model(parser)
    return parser.parse_args(argv)


def test_a_public_machine_is_used_where_that_was_confirmed() -> None:
    named = ("--rpc", "8.8.8.8:50052")
    with pytest.raises(SettingError, match="--rpc-public"):
        loading.machines(_parsed(*named))
    assert loading.machines(_parsed(*named, "--rpc-public")) == ("8.8.8.8:50052",)
    with pytest.raises(SettingError, match="needs --rpc"):
        loading.machines(_parsed("--rpc-public"))


def test_parts_of_the_layers_are_numbers() -> None:
    assert loading.tensor_split(_parsed("--tensor-split", "3,1.5")) == (3.0, 1.5)
    with pytest.raises(SettingError, match="'3;1' is not understood"):
        loading.tensor_split(_parsed("--tensor-split", "3;1"))
    for wrong in ((0.0, 0.0), (1.0, -1.0), (float("nan"), 1.0), (float("inf"), 1.0)):
        with pytest.raises(SettingError, match="0 or more"):
            PairSettings(tensor_split=wrong)


# -- asking them


def test_a_machine_tells_what_memory_its_devices_have() -> None:
    with fake_machine(memory=((5, 6), (7, 8))) as machine:
        assert ask(machine.address) == [
            Device(f"{machine.address}/0", 5, 6, "on another machine"),
            Device(f"{machine.address}/1", 7, 8, "on another machine"),
        ]
    with fake_machine() as machine:
        assert ask(machine.address) == [Device(machine.address, 3 << 30, 4 << 30, "on another machine")]


def test_a_machine_that_cannot_serve_is_reported_in_a_sentence() -> None:
    """llama.cpp would end the process at each of these, or wait for ever."""
    for why, how in (
        ("speaks version 6.1 of llama.cpp's RPC, and this one 7.0", {"version": (6, 1, 0)}),
        ("speaks version 7.1", {"version": (7, 1, 0)}),
        ("serves another program", {"busy": True}),
        ("closed the connection", {"hangs_up": True}),
        ("has 0 devices", {"memory": ()}),
    ):
        with fake_machine(**how) as machine, pytest.raises(MachineLostError, match=why) as error:
            ask(machine.address, answer_s=0.1)
        assert machine.address in str(error.value)
    with pytest.raises(MachineLostError, match="nothing listens there: start `edgespec rpc`"):
        ask(free_address())


def test_we_speak_the_version_of_rpc_that_the_installed_llama_cpp_has() -> None:
    header = Path(sysconfig.get_paths()["purelib"]) / "include" / "ggml-rpc.h"
    if not header.exists():
        pytest.skip(f"llama-cpp-python was installed without its headers: there is no {header}")
    text = header.read_text()
    said = tuple(
        int(re.search(rf"RPC_PROTO_{part}_VERSION +(\d+)", text)[1])  # type: ignore[index]
        for part in ("MAJOR", "MINOR")
    )
    most = re.search(r"GGML_RPC_MAX_SERVERS +(\d+)", text)
    assert said == (machines.MAJOR, machines.MINOR)
    assert most and int(most[1]) == machines.MOST_MACHINES


def test_who_is_missing_is_found_among_several_at_once() -> None:
    gone = free_address()
    with fake_machine() as one, fake_machine(busy=True) as two:
        assert absent([one.address, gone, two.address], 5.0) == [gone]
        assert absent([], 0.0) == []


# -- a registry that is faked, and the models that are placed by it


@dataclass(slots=True)
class Registry:
    """llama.cpp's RPC registry: each machine has the processor of this one, a device that loads models."""

    added: list[str] = field(default_factory=list)
    functions: dict[bytes, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        kind = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p)
        self.functions[b"ggml_backend_rpc_add_server"] = kind(self._add)

    def _add(self, endpoint: bytes) -> int:
        self.added.append(endpoint.decode())
        return 1000 + len(self.added)

    def libraries(self) -> tuple[Any, Any]:
        real = local_devices("cpu")[0]
        return (
            Namespace(ggml_backend_reg_by_name=lambda name: 1 if name == b"RPC" else None),
            Namespace(
                ggml_backend_reg_get_proc_address=lambda _, name: (
                    ctypes.cast(self.functions[name], ctypes.c_void_p).value
                ),
                ggml_backend_reg_dev_count=lambda _: 1,
                ggml_backend_reg_dev_get=lambda registry, i: real,
                ggml_backend_dev_name=lambda _: f"RPC{len(self.added) - 1}".encode(),
                ggml_set_abort_callback=lambda _: None,
            ),
        )


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    found = Registry()
    monkeypatch.setattr(remote, "libraries", found.libraries)
    monkeypatch.setattr(remote, "_used", [])
    monkeypatch.setattr(remote, "names", {})
    yield found


def test_machines_are_asked_before_llama_cpp_meets_them(registry: Registry) -> None:
    with fake_machine() as one, fake_machine(version=(8, 0, 0)) as two:
        assert len(remote.devices([one.address])) == 1
        assert registry.added == [one.address] and one.asked
        with pytest.raises(MachineLostError, match="version 8.0"):
            remote.devices([two.address])
        assert registry.added == [one.address]
        buffers = {"RPC0": one.address, f"RPC0[{one.address}]": one.address, "RPC7": RAM}
        assert {name: memory_child._device(name) for name in buffers} == buffers


def test_a_pair_whose_target_lies_elsewhere_says_what_it_says_here(
    registry: Registry, tiny_target: Path, tiny_draft: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The faked machine's device is this processor, so llama.cpp really loads and evaluates there."""
    from edgespec.core.request import Request
    from edgespec.sampling.sampler import Sampling

    loaded: list[tuple[str, int]] = []
    load = Model.__init__

    def noted(self: Model, path: Path, *, devices: Any = (), **how: Any) -> None:
        loaded.append((Path(path).name, len(devices)))
        load(self, path, devices=devices, **how)

    monkeypatch.setattr(Model, "__init__", noted)
    request = Request(sampling=Sampling(temperature=0), max_tokens=24, drafter="model", draft_length=3)

    def text(settings: PairSettings) -> str:
        with Pair(tiny_target, tiny_draft, settings) as pair:
            rounds = list(pair.generate(pair.prompt_tokens("def mean(values):"), request))
        assert sum(round_.drafted for round_ in rounds)
        return "".join(round_.text for round_ in rounds)

    here_ = text(PairSettings(n_ctx=128, threads=1, remember=False))
    with fake_machine() as machine:
        rpc = (machine.address,)
        monkeypatch.setattr(at_load, "MemoryOracle", _NoOracle)  # its child has another registry
        there = text(PairSettings(n_ctx=128, threads=1, remember=False, rpc=rpc, tensor_split=(1.0,)))
    assert there == here_
    assert loaded[-2:] == [(tiny_target.name, 1), (tiny_draft.name, 0)], "the draft stays here"


class _NoOracle:
    """Knows nothing of memory: formulas have to do."""

    def __enter__(self) -> _NoOracle:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def devices(self) -> list[Device]:
        return []

    def need(self, question: Any) -> Any:
        raise EdgeSpecError("not asked")


def test_parts_are_for_as_many_devices_as_there_are(registry: Registry, tiny_target: Path) -> None:
    with fake_machine() as machine:
        places = remote.devices([machine.address])
    with pytest.raises(SettingError, match="has 2 parts for 1 devices"):
        Model(tiny_target, devices=places, tensor_split=(1, 2))


def test_memory_of_machines_counts(tiny_target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(at_load, "MemoryOracle", _NoOracle)
    with fake_machine(memory=((1 << 40, 2 << 40),)) as machine:
        fit = at_load.pair_fit(tiny_target, None, PairSettings(rpc=(machine.address,)))
        assert Device(machine.address, 1 << 40, 2 << 40, "on another machine") in fit.devices
    with pytest.raises(MachineLostError, match="nothing listens there"):
        at_load.fitted(tiny_target, None, PairSettings(rpc=(machine.address,)), [])


def test_a_build_without_rpc_says_how_to_make_one(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = (Namespace(ggml_backend_reg_by_name=lambda _: None), None)
    monkeypatch.setattr(remote, "libraries", lambda: nothing)
    for needs_it in (lambda: remote.devices(["127.0.0.1:1"]), lambda: remote.lending("", 1, threads=1)):
        with pytest.raises(ModelUnsupportedError, match="build it with RPC, as docs/install.md#"):
            needs_it()


# -- losing them


def test_a_lost_machine_is_the_last_word_of_a_process() -> None:
    """llama.cpp ends the process in a thread of its own; it is made to say which machine it was."""
    gone = free_address()
    with fake_machine() as there:
        code = f"""
from edgespec.llama import remote
remote._used += [{there.address!r}, {gone!r}]
remote._on_abort(b"ggml-rpc.cpp:1: Remote RPC server crashed or returned malformed response")
"""
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == LOST
    assert cause_of_death(LOST, done.stderr) == f"lost the machine of --rpc at {gone}"
    assert cause_of_death(LOST, "something else") is None


def test_a_machine_that_hung_up_is_missed_while_nothing_is_evaluated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended: list[list[str]] = []
    monkeypatch.setattr(remote, "_end", lambda gone: ended.append(list(gone)))
    with fake_machine(busy=True) as machine:
        host, _, port = machine.address.rpartition(":")
        with socket.create_connection((host, int(port))) as connection:
            theirs, _ = machine.listener.accept()
            remote.watch([machine.address])
            assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            remote.end_if_lost([machine.address])
            remote.end_if_lost([])
            assert not ended
            theirs.close()
            remote.end_if_lost([machine.address])
    assert ended == [[machine.address]]


def test_a_server_waits_for_a_machine_that_was_lost() -> None:
    missing = [["10.0.0.1:1"], ["10.0.0.1:1"], ["10.0.0.2:2"], []]
    told: list[str] = []
    load = LoadRequest("target.gguf", None, PairSettings(rpc=("10.0.0.1:1", "10.0.0.2:2")), 1)

    async def wait() -> str:
        worker = Supervisor(load, tell=told.append).current
        worker.state = "down"
        await worker.until_there(load.settings.rpc, missing=lambda *_: missing.pop(0), every_s=0.02)
        return worker.absence().message

    assert "waiting for the machine of --rpc at 10.0.0.2:2" in asyncio.run(wait())
    assert told == [f"waiting for the machine of --rpc at 10.0.0.{end}" for end in ("1:1", "2:2")]


# -- commands


def test_the_doctor_looks_at_machines() -> None:
    gone = free_address()
    with fake_machine() as machine:
        good, bad = machine_checks.machines([machine.address, gone], {"rpc": True})
    assert good.status == "good" and "3.0 GiB of 4.0 GiB free" in good.text
    assert bad.status == "problem" and gone in bad.text
    (unable,) = machine_checks.machines([gone], {"rpc": False})
    assert unable.status == "problem" and "docs/install.md#" in unable.remedy
    assert machine_checks.machines([], {"rpc": False}) == []


def test_a_chat_hands_its_machines_on_to_the_engine_that_it_starts() -> None:
    named = ["--rpc", "10.0.0.1:1", "--tensor-split", "2,1", "--rpc-public"]
    assert sorted(engine_flags(cli.parsed(["chat", *named]))) == sorted(named)
    assert engine_flags(cli.parsed(["chat"])) == ()
    others = ("--gpu-layers", "0", "--override-tensor", "exps=CPU", "--no-draft")
    assert sorted(engine_flags(cli.parsed(["chat", *others]))) == sorted(others)
    scaled = ["--rope-scaling", "yarn", "--rope-scale", "4.0", "--yarn-orig-ctx", "512"]
    assert sorted(engine_flags(cli.parsed(["chat", *scaled]))) == sorted(scaled)


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        (("--host", "0.0.0.0"), "all addresses of this machine.*--public"),
        (("--host", "8.8.8.8"), "outside private networks.*--public"),
        (("--host", "desk"), "not an IPv4 address"),
        (("--port", "0"), "--port is 0"),
        (("--threads", "0"), "number of threads"),
        (("--host", "192.0.2.1"), "cannot listen on 192.0.2.1:50052"),
    ],
)
def test_a_machine_is_lent_to_ones_own_networks_only(argv: tuple[str, ...], why: str) -> None:
    with pytest.raises(EdgeSpecError, match=why):
        rpc.run(_rpc_flags(*argv))


def _rpc_flags(*argv: str) -> Namespace:
    parser = ArgumentParser()
    rpc.add(parser)
    return parser.parse_args(argv)


def test_what_is_lent_is_handed_to_llama_cpp(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    heard: list[tuple[bytes, bytes | None, int, int, int]] = []
    text, size, pointers = ctypes.c_char_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_void_p)

    def start(at: bytes, cache: bytes | None, threads: int, n: int, devices: Any) -> None:
        heard.append((at, cache, threads, n, devices[0]))

    registry.functions[b"ggml_backend_rpc_start_server"] = ctypes.CFUNCTYPE(
        None, text, text, size, size, pointers
    )(start)
    address = free_address()
    port = address.rpartition(":")[2]
    with pytest.raises(EdgeSpecError, match="ended at"):  # it never returns, but where it cannot listen
        rpc.run(_rpc_flags("--port", port, "--threads", "3", "--cache"))
    (at, cache, threads, n, device), *rest = heard
    assert (at.decode(), threads, n, device, rest) == (address, 3, 1, local_devices("cpu")[0], [])
    assert cache is not None and Path(cache.decode()).is_dir()
    assert f"--rpc {address}" in capsys.readouterr().err
    with pytest.raises(SettingError, match="--device CUDA9 is not here"):
        remote.lending("127.0.0.1", 1, threads=1, chosen=("CUDA9",))
