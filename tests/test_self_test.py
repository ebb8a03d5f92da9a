"""The embedded pair finds a build of llama.cpp that crashes or computes wrong, and heals it if possible."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import llama_cpp
import pytest
import served

from edgespec.client.client import Client
from edgespec.commands.doctor import machine_checks
from edgespec.system import builds, isolate, self_test
from edgespec.system.self_test import SelfTest

ROOT = Path(__file__).resolve().parent.parent
REAL = Path(llama_cpp.__file__).parent

# A package in front of the real one, which it is but for one function: what `llama_decode` leaves behind.
LYING = """
import ctypes, os, signal, sys
from importlib.util import module_from_spec, spec_from_file_location
spec = spec_from_file_location("llama_cpp", {init!r}, submodule_search_locations=[{real!r}])
module = sys.modules["llama_cpp"] = module_from_spec(spec)
spec.loader.exec_module(module)
module.__spec__ = __spec__  # it is found here, not where the real one lies
state = {{"repacked": True}}
load, decode = module.llama_model_load_from_file, module.llama_decode
def llama_model_load_from_file(path, params):
    state["repacked"] = params.use_extra_bufts
    return load(path, params)
def llama_decode(context, batch):
    code = decode(context, batch)
    threads, n = module.llama_n_threads(context), batch.n_tokens
    if {when}:
        {deed}
    return code
module.llama_model_load_from_file, module.llama_decode = llama_model_load_from_file, llama_decode
"""
NOISE = "row = module.llama_get_logits_ith(context, n - 1)\n        for i in range(0, 4096, 2): row[i] += 1.0"
CRASH = "os.kill(os.getpid(), signal.SIGSEGV)"


@pytest.fixture
def lying(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in front of all others, for a llama_cpp that lies."""
    folder = tmp_path / "lying"
    (folder / "llama_cpp").mkdir(parents=True)
    paths = [str(folder), str(ROOT), str(ROOT / "models"), str(ROOT / "tui")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    return folder


def lie(folder: Path, when: str, deed: str) -> None:
    text = LYING.format(init=str(REAL / "__init__.py"), real=str(REAL), when=when, deed=deed)
    (folder / "llama_cpp" / "__init__.py").write_text(text)


def edgespec(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "edgespec", *arguments], capture_output=True, text=True, timeout=120
    )


RUN = ("run", "--raw", "-n", "8", "--temperature", "0", "def ")


def test_a_sound_build_passes() -> None:
    """With any processor, threads and kernels: else everyone's first start would claim a fault."""
    assert self_test.run() == SelfTest() and not SelfTest().advice


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("when", "deed", "fault"),
    [
        ("state['repacked']", CRASH, "SIGSEGV while it evaluates the embedded pair"),
        ("state['repacked'] and n > 4", NOISE, "in a batch on 1 thread, are off by"),
        ("state['repacked'] and n == 1 and threads == 2", NOISE, "one by one on 2 threads, are off by"),
        ("state['repacked']", "module.llama_get_logits_ith(context, n - 1)[0] = float('nan')", "off by nan"),
    ],
)
def test_what_repacked_weights_break_is_healed_without_them(
    lying: Path, when: str, deed: str, fault: str
) -> None:
    lie(lying, when, deed)
    found = self_test.run()
    assert found
    assert fault in found.fault and found.sound and not found.extra_buffers
    assert "slower but correct" in found.advice and builds.MENDING in found.advice


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "deed",
    [
        "os.kill(os.getpid(), signal.SIGKILL)",
        "raise MemoryError",
        pytest.param("os._exit(7)", marks=pytest.mark.slow),
    ],
)
def test_a_child_that_found_no_memory_says_nothing_of_the_build(
    lying: Path, deed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lie(lying, "True", deed)
    assert self_test.run() is None
    monkeypatch.setenv("EDGESPEC_CACHE_DIR", str(lying / "nothing kept"))
    assert self_test.self_test({}) == SelfTest() and not self_test.kept_in().exists()


def test_what_nothing_heals_is_refused_with_the_command_that_does(lying: Path) -> None:
    lie(lying, "True", NOISE)
    found = self_test.run()
    assert found
    assert not found.sound
    said = edgespec(*RUN)
    assert said.returncode == 1 and said.stdout == ""
    assert said.stderr.strip() == f"edgespec: {found.advice}" and len(said.stderr.splitlines()) == 1


@pytest.mark.slow
def test_run_gives_the_right_text_on_a_build_that_crashes_and_says_why_it_is_slower(lying: Path) -> None:
    right = edgespec(*RUN)
    lie(lying, "state['repacked']", CRASH)
    healed = edgespec(*RUN)
    assert (healed.returncode, healed.stdout) == (0, right.stdout)
    assert "does not compute correctly on this processor (SIGSEGV" in healed.stderr
    again = edgespec(*RUN)  # what was found is kept
    assert again.stdout == right.stdout and "does not compute correctly" in again.stderr


def test_an_abort_is_blamed_on_the_file_only_where_the_embedded_pair_runs(
    lying: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first command of the README ended in SIGSEGV, and its message sent people to download again."""
    assert "most likely the model file is damaged" in str(isolate.cause_of_death(-11, ""))
    lie(lying, "True", CRASH)
    monkeypatch.syspath_prepend(str(lying))  # where self_test looks for the libraries it is to test
    sys.modules.pop("llama_cpp")
    try:
        said = str(isolate.cause_of_death(-11, ""))
    finally:
        sys.modules["llama_cpp"] = llama_cpp
    assert "damaged" not in said and "no model can be trusted with it" in said


def test_it_runs_once_for_each_build_and_processor(lying: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[bool] = []

    def test() -> SelfTest:
        calls.append(True)
        return SelfTest("it lied", False, True)

    assert self_test.self_test({}, test=test) == SelfTest() and not calls  # as the session's fixture found
    monkeypatch.setattr(self_test, "_processor", lambda: "another")
    assert self_test.self_test({}, test=test).fault == "it lied" and len(calls) == 1
    assert self_test.self_test({}, test=test).fault == "it lied" and len(calls) == 1


@pytest.mark.slow  # `run` above says and keeps the same
def test_a_server_says_it_at_its_start_and_to_its_clients(lying: Path, tmp_path: Path) -> None:
    lie(lying, "state['repacked']", CRASH)
    with served.served(tmp_path) as server:
        began = time.monotonic()  # it is said behind the address
        while "does not compute correctly" not in server.logged() and time.monotonic() < began + 20:
            time.sleep(0.05)
        assert server.logged().count("does not compute correctly on this processor (SIGSEGV") == 1
        assert "slower but correct" in Client.at(server.url).info().build_advice
        answer = server.ask("/v1/completions", {"prompt": "def ", "max_tokens": 4})
        assert answer.status == 200 and answer.json["usage"]["completion_tokens"] == 4


@pytest.mark.parametrize(
    "text",
    [
        '{"fault": 1, "extra_buffers": true, "sound": true}',
        "\x00",
        *(pytest.param(text, marks=pytest.mark.slow) for text in ("", "[]")),
    ],
)
def test_a_damaged_result_is_found_again(text: str) -> None:
    path = self_test.kept_in()
    path.write_text(text)
    assert self_test.self_test({}) == SelfTest()
    assert '"fault": ""' in path.read_text()


def test_the_doctor_tells_it_with_the_command_that_mends_it() -> None:
    good = machine_checks.arithmetic(SelfTest())
    assert good.status == "good"
    bad = machine_checks.arithmetic(SelfTest("SIGSEGV", extra_buffers=False))
    assert bad.status == "problem" and "slower but correct" in bad.text and builds.MENDING in bad.remedy
