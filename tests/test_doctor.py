"""The doctor finds what is wrong, says what to do about it, and survives what is broken."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import psutil
import pytest
import tiny_gguf
from announced import announced

from edgespec.client import state_file
from edgespec.commands import cli
from edgespec.commands.doctor import findings, machine_checks, pair_checks
from edgespec.commands.doctor.findings import Finding
from edgespec.commands.doctor.pair_checks import judged, speculation
from edgespec.errors import ModelFileError, PairMismatchError
from edgespec.memory.oracle import llama_build
from edgespec.pairs.settings import PairSettings
from edgespec.system.builds import REBUILD
from edgespec.system.cards import Card, cards

NVIDIA = Card("NVIDIA GeForce RTX 4060", ("CUDA", "Vulkan"))
CPU_ALONE = {
    "devices": [
        {"name": "CPU", "description": "CPU", "backend": "CPU", "kind": "cpu", "free": 1, "total": 1},
    ],
    "features": ["AVX", "AVX2", "FMA", "F16C"],
}
CUDA = {
    "name": "CUDA0", "description": "RTX 4060", "backend": "CUDA", "kind": "gpu", "free": 7 << 30,
    "total": 8 << 30,
}  # fmt: skip


def problems(findings: list[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.status == "problem"]


# --- cards


def test_nvidia_cards_are_those_that_nvidia_smi_names() -> None:
    found = cards(system="linux", run=lambda _: "NVIDIA GeForce RTX 4060\n", drm=Path("/nothing"))
    assert found == [NVIDIA]


def test_cards_of_others_are_those_that_linux_lists(tmp_path: Path) -> None:
    for name, vendor, vram in (("card0", "0x8086", ""), ("card1", "0x1002", f"{16 << 30}")):
        device = tmp_path / name / "device"
        device.mkdir(parents=True)
        (device / "vendor").write_text(vendor + "\n")
        if vram:
            (device / "mem_info_vram_total").write_text(vram)
    (tmp_path / "card1-HDMI-A-1" / "device").mkdir(parents=True)
    (tmp_path / "card1-HDMI-A-1" / "device" / "vendor").write_text("0x1002")
    intel, amd = cards(system="linux", run=lambda _: None, drm=tmp_path)
    assert intel.integrated and intel.backends == ("Vulkan",)
    assert amd.backends == ("ROCm", "Vulkan") and not amd.integrated


def test_apple_silicon_is_a_card() -> None:
    (card,) = cards(system="darwin", run=lambda _: "Apple M2\n")
    assert card.backends == ("Metal",) and card.integrated
    assert not cards(system="darwin", run=lambda _: "Intel(R) Core(TM) i7\n")


def test_a_card_that_the_build_does_not_know_is_a_problem() -> None:
    (found,) = machine_checks.graphics([NVIDIA], CPU_ALONE)
    assert found.status == "problem" and "not built for CUDA" in found.text
    assert found.remedy == REBUILD
    assert found.facts["backend"] == "CUDA"


def test_a_card_that_is_used_is_no_problem() -> None:
    said = {**CPU_ALONE, "devices": [*CPU_ALONE["devices"], CUDA]}
    (found,) = machine_checks.graphics([NVIDIA], said)
    assert found.status == "good" and "7.0 GiB of 8.0 GiB free" in found.text


def test_a_build_for_cuda_that_finds_no_card_is_a_matter_of_the_driver() -> None:
    said = {**CPU_ALONE, "devices": [*CPU_ALONE["devices"], {**CUDA, "kind": "accelerator"}]}
    (found,) = machine_checks.graphics([NVIDIA], said)
    assert found.status == "problem" and "update the driver" in found.remedy


def test_graphics_within_the_processor_are_worth_a_note_only() -> None:
    intel = Card("Intel graphics (card0)", ("Vulkan",), integrated=True)
    (found,) = machine_checks.graphics([intel], CPU_ALONE)
    assert found.status == "note" and "may or may not be faster" in found.text


# --- build, threads


def test_a_build_without_what_the_processor_can_is_found(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor : 0\nflags : fpu avx avx2 fma f16c\n")
    assert machine_checks.build(CPU_ALONE, cpuinfo=cpuinfo).status == "good"
    slow = {**CPU_ALONE, "features": ["AVX"]}
    found = machine_checks.build(slow, cpuinfo=cpuinfo)
    assert found.status == "problem" and found.facts["missing"] == ["AVX2", "FMA", "F16C"]
    assert REBUILD in found.remedy, "wheels are made for many processors"


def test_a_build_that_cannot_be_loaded_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "llama_cpp").mkdir()
    broken = "raise OSError('libcudart.so.12: cannot open shared object file')"
    (tmp_path / "llama_cpp" / "__init__.py").write_text(broken)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    reply = llama_build()
    found = machine_checks.build(reply)
    assert (
        found.status == "problem" and "libcudart.so.12" in found.text and "docs/install.md#" in found.remedy
    )
    assert machine_checks.graphics([], reply)[0].status == "note"


def test_a_child_that_dies_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "llama_cpp").mkdir()
    (tmp_path / "llama_cpp" / "__init__.py").write_text("import os; os.abort()")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    assert "llama.cpp aborted (SIGABRT)" in llama_build()["error"]


def test_more_threads_than_cores_are_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EDGESPEC_THREADS")
    assert machine_checks.threads(None, 4)[0].status == "good"
    assert "give 4" in problems(machine_checks.threads(8, 4))[0].remedy
    monkeypatch.setenv("EDGESPEC_THREADS", "2")
    (found,) = machine_checks.threads(None, 4)
    assert found.status == "note" and "EDGESPEC_THREADS" in found.remedy
    assert machine_checks.threads(None, 4, busy=1.5)[-1].text == "other programs keep 1.5 cores busy"


# --- the pair


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {
        "big": tiny_gguf.write_llama(folder / "big.gguf", layers=6),
        "small": tiny_gguf.write_llama(folder / "small.gguf", layers=1, ffn=32),
        "stranger": tiny_gguf.write_llama(
            folder / "stranger.gguf",
            vocab=tiny_gguf.altered(tiny_gguf.make_vocabulary(), texts=tiny_gguf.FOREIGN),
        ),
        "hybrid": tiny_gguf.write_hybrid(folder / "hybrid.gguf"),
    }


def test_a_sound_pair_is_found_sound(models: dict[str, Path]) -> None:
    found = pair_checks.pair(models["big"], models["small"])
    assert not problems(found)
    assert "the vocabularies match: the draft may guess for the target" in [f.text for f in found]


def test_a_pair_that_does_not_match_is_a_problem(models: dict[str, Path]) -> None:
    with pytest.raises(PairMismatchError, match=r"stranger.gguf cannot draft for big.gguf.*family"):
        pair_checks.pair(models["big"], models["stranger"])


def test_what_is_no_model_is_a_problem(tmp_path: Path, models: dict[str, Path]) -> None:
    nonsense = tmp_path / "text.gguf"
    nonsense.write_text("hello")
    with pytest.raises(ModelFileError, match="is not a GGUF file"):
        pair_checks.pair(models["big"], nonsense)
    with pytest.raises(ModelFileError):
        pair_checks.pair(tmp_path / "absent.gguf", None)


def test_a_hybrid_is_stated_to_serve_one_at_a_time(models: dict[str, Path]) -> None:
    found = pair_checks.pair(models["hybrid"], None)
    assert any("one request at a time" in finding.text for finding in found)


def test_what_a_pair_takes_is_reported(models: dict[str, Path]) -> None:
    found, attention = pair_checks.fit(models["big"], models["small"], PairSettings())
    assert found.status == "good" and found.facts["n_ctx"] == 512
    devices = [need["devices"]["RAM"] for need in found.facts["needs"].values()]
    assert len(devices) == 2 and found.facts["total"] == sum(sum(parts.values()) for parts in devices)
    assert attention.topic == "attention" and attention.text.startswith("flash attention: o")


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (PairSettings(flash_attention=True), "flash attention: on, as asked"),
        (PairSettings(flash_attention=False), "flash attention: off, as asked"),
        (PairSettings(byte_identical=True), "flash attention: off, as asked"),
    ],
)
def test_what_digits_depend_on_is_reported(
    models: dict[str, Path], settings: PairSettings, text: str
) -> None:
    *_, found = pair_checks.fit(models["big"], None, settings)
    assert found.topic == "attention" and text in found.text and "docs/exactness.md" in found.text


# --- speculation


def measured(**changes: Any) -> dict[str, Any]:
    said = {
        "plain_tok_per_s": 10.0, "tok_per_s": 15.0, "drafted": 100, "accepted": 70, "acceptance_rate": 0.7,
        "speedup": {"value": 1.5, "low": 1.3, "high": 1.7, "n": 8}, "prompts": 8, "others": 0.0,
        "sources": {"model": 70, "target": 50}, "target_s": {"1": 0.1, "2": 0.11, "4": 0.13}, "draft_s": 0.01,
    }  # fmt: skip
    return said | changes


def test_speculation_that_pays_is_stated_to_pay() -> None:
    on, pays = judged(measured())
    assert on.text == "speculation is on: 100 tokens guessed, 70 accepted (model 70)"
    assert pays.status == "good" and "8 prompts: 1.50 times (95 %: 1.30 to 1.70)" in pays.text


@pytest.mark.parametrize(
    "changes",
    [
        {"drafted": 1, "accepted": 0, "sources": {"model": 0}},
        {"prompts": 1},
        {"speedup": None},
        {"speedup": {"value": 3.17, "low": None, "high": None, "n": 1}},
    ],
)
def test_what_rests_on_little_is_no_verdict(changes: dict[str, Any]) -> None:
    """ "1 tokens guessed, 0 accepted ... 3.17 times" was certified."""
    on, found = judged(measured(**changes))
    assert "1 tokens" not in on.text
    assert found.status == "note" and "too little was measured to say whether it pays" in found.text
    assert "times" not in found.text and "--seconds" in found.remedy


def test_a_speed_up_that_may_be_none_is_not_called_one() -> None:
    doubtful = {"speedup": {"value": 1.2, "low": 0.9, "high": 1.5, "n": 8}}
    _, found = judged(measured(**doubtful))
    assert found.status == "note" and "it is unclear whether it pays off here" in found.text


def test_speculation_that_does_not_pay_is_reported_with_the_costs() -> None:
    slow = {"tok_per_s": 9.0, "speedup": {"value": 0.9, "low": 0.85, "high": 0.95, "n": 8}}
    costs = {"draft_s": 0.05, "target_s": {"1": 0.1, "4": 0.35}, "acceptance_rate": 0.2}
    _, found = judged(measured(**slow, **costs))
    assert found.status == "note" and "does not pay off here" in found.text
    for fact in ("a token takes 100.0 ms", "a guess 50% of that", "3.5 times", "20% of the guesses"):
        assert fact in found.remedy
    assert "--no-draft" in found.remedy and "docs/doctor.md#when-guesses-do-not-pay" in found.remedy


def test_what_cannot_be_run_is_a_problem() -> None:
    (found,) = judged({"error": "the engine was killed"})
    assert found.status == "problem" and "the engine was killed" in found.text


def test_the_measurement_is_one_of_the_real_thing(tiny_target: Path, tiny_draft: Path) -> None:
    found = speculation(tiny_target, tiny_draft, PairSettings(remember=False), 0.5)
    assert found and not problems(found)
    assert all("speculation" in finding.topic for finding in found)
    speeds = found[-1].facts
    assert speeds.get("plain_tok_per_s", 1) > 0 and speeds.get("prompts", 1) >= 1


# --- surroundings


def test_a_server_that_has_gone_is_a_note(home: Path) -> None:
    absent = next(pid for pid in range(2**21, 2**21 + 100) if not psutil.pid_exists(pid))
    state = state_file.ServerState("127.0.0.1", 9, absent, "model")
    with announced(state):
        (found,) = machine_checks.endpoint()
        assert found.status == "note" and "has gone without notice" in found.text
    (found,) = machine_checks.endpoint()
    assert found.text.startswith("no server runs")


def test_a_server_that_does_not_answer_is_a_problem(home: Path) -> None:
    with announced(state_file.ServerState("127.0.0.1", 9, os.getpid(), "model")):
        (found,) = machine_checks.endpoint()
    assert found.status == "problem" and f"kill {os.getpid()}" in found.remedy


def test_the_settings_for_the_hub_are_reported(tmp_path: Path) -> None:
    found = machine_checks.hub({"HF_HOME": str(tmp_path), "HF_TOKEN": "x"})
    assert found.status == "good" and found.facts["token"] == "HF_TOKEN"
    assert found.facts["cache"] == str(tmp_path / "hub") and "x" not in found.text.split()
    found = machine_checks.hub({"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"})
    assert found.status == "note" and "(offline), token: none" in found.text


# --- what is shown


def test_each_page_that_it_names_is_there() -> None:
    """A page, and a heading on it: nothing else says what to do about a build."""
    docs = Path(__file__).parents[1]
    source = "".join(path.read_text() for path in (docs / "edgespec").rglob("*.py"))
    for page, heading in set(re.findall(r"(docs/\w+\.md)#([\w-]+)", source)):
        headings = re.findall(r"^#+ (.*)$", (docs / page).read_text(), re.MULTILINE)
        anchors = [re.sub(r"[^\w -]", "", line).lower().replace(" ", "-") for line in headings]
        assert heading in anchors, (page, heading)


def test_the_report_counts_problems() -> None:
    found = [
        Finding("a", "good", "fine"),
        Finding("b", "note", "well", "perhaps"),
        Finding("c", "problem", "bad", "mend it"),
    ]
    assert findings.lines(found)[-1].startswith("1 problem:")
    assert findings.lines(found[:2])[-1] == "No problems found."
    said = json.loads(findings.document(found))
    assert said["problems"] == 1 and said["findings"][2]["remedy"] == "mend it"
    assert findings.lines(found)[-3].strip() == "-> mend it"


def test_the_command_tells_all_and_its_exit_code_says_whether_something_is_wrong(
    models: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    pair = ["--target", str(models["big"]), "--draft", str(models["small"])]
    code = cli.main(["doctor", "--no-measure", "--json", *pair])
    printed = json.loads(capsys.readouterr().out)
    topics = {finding["topic"] for finding in printed["findings"]}
    assert topics >= {
        "program", "build", "arithmetic", "graphics", "threads", "memory", "pair", "attention", "endpoint",
        "hub", "folders",
    }  # fmt: skip
    assert code == int(printed["problems"] > 0)
    pair[-1] = str(models["stranger"])
    assert cli.main(["doctor", "--no-measure", *pair]) == 1
    shown = capsys.readouterr().out
    assert "!!" in shown and "cannot draft for" in shown and shown.rstrip().endswith("what to do after ->.")


def test_a_flag_that_is_wrong_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--seconds", "0"]) == 2
    assert capsys.readouterr().err.startswith("edgespec: --seconds is 0.0: it must be")
