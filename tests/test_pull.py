"""From a name to an installed pair: the reports before, the progress, and what an interruption leaves."""

from __future__ import annotations

import json
import os
import re
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import tiny_gguf
import tiny_heads
from gguf import GGUFReader, GGUFWriter
from hub_models import as_large_as, model_bytes
from little_memory import memory_is
from local_hub import Fault, LocalHub
from tiny_projector import write_projector

from edgespec.commands import cli
from edgespec.commands.pairs.words import show_lines
from edgespec.pairs.projector import AUTO, projector_of
from edgespec.system import config
from edgespec_models.gguf.header import Header
from edgespec_models.hub.choose_file import Chosen
from edgespec_models.hub.download import Cancelled, Download, Downloaded, FileProgress
from edgespec_models.hub.errors import HubError
from edgespec_models.hub.fetch import fetch
from edgespec_models.hub.hub import Hub
from edgespec_models.hub.pull import Pull, order, plan_pull
from edgespec_models.shelf.catalogue import find
from edgespec_models.shelf.store import Store

pytestmark = pytest.mark.usefixtures("one_oracle")

MB = 1 << 20


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalHub]:
    with LocalHub() as hub:
        hub.add("acme/Big-9B-GGUF", {"Big-9B-Q4_K_M.gguf": model_bytes(tmp_path, d=256, layers=3)})
        hub.add("acme/Big-1B-GGUF", {"Big-1B-Q8_0.gguf": model_bytes(tmp_path, seed=1)})
        hub.add("acme/Big-0.5B-GGUF", {"Big-0.5B-Q8_0.gguf": model_bytes(tmp_path, texts=tiny_gguf.FOREIGN)})
        yield hub


@pytest.fixture
def hub(local: LocalHub, tmp_path: Path) -> Hub:
    return Hub(endpoint=local.endpoint, token=False, cache=tmp_path / "hub", offline=False)


@pytest.fixture
def store() -> Store:
    return Store(config.data_folder())


BOTH = order("acme/Big-9B-GGUF", draft="acme/Big-1B-GGUF")


def bytes_of(local: LocalHub) -> int:
    return sum(file.size for repo in ("acme/Big-9B-GGUF", "acme/Big-1B-GGUF")
               for file in local.repos[repo].files.values())  # fmt: skip


def test_a_pair_is_downloaded_together_verified_and_installed(
    local: LocalHub, hub: Hub, store: Store
) -> None:
    plan = plan_pull(hub, BOTH)
    local.served.clear()
    assert plan.to_fetch == bytes_of(local) and plan.at_hand == 0
    shown: list[Downloaded] = []
    pair = Pull(plan, hub, store).run(shown.append)
    assert (pair.name, store.default()) == ("big-9b", "big-9b")
    assert all(path.is_file() for path in (pair.target.path, pair.draft.path if pair.draft else None) if path)
    assert pair.target.fetched and len(pair.target.sha256) == 1
    assert shown[-1].done == shown[-1].total == plan.to_fetch
    assert {file.phase for progress in shown for file in progress.files} == {
        "queued", "downloading", "verifying", "done",
    }  # fmt: skip
    assert sum(local.served.values()) == plan.to_fetch
    again = plan_pull(hub, BOTH)
    assert (again.to_fetch, again.header_bytes) == (0, 0)
    shown.clear()
    Pull(again, hub, store).run(shown.append)
    assert "verifying" not in {file.phase for progress in shown for file in progress.files}, "once is enough"
    assert sum(local.served.values()) == plan.to_fetch
    assert store.remove("big-9b").freed == plan.to_fetch


def slow(local: LocalHub, name: str) -> None:
    local.faults.append(Fault("store", name, pause_s=0.02))


def test_cancelling_works_at_once_and_the_next_pull_fetches_what_is_missing(
    local: LocalHub, hub: Hub, store: Store
) -> None:
    local.add("acme/Big-9B-GGUF", {"Big-9B-Q4_K_M.gguf": as_large_as(
        local.repos["acme/Big-9B-GGUF"].files["Big-9B-Q4_K_M.gguf"].head, 12 * MB)})  # fmt: skip
    plan = plan_pull(hub, BOTH)
    local.served.clear()
    slow(local, "Big-9B")
    pull = Pull(plan, hub, store)
    cancelled_at = 0.0

    def cancel_in_the_middle(progress: Downloaded) -> None:
        nonlocal cancelled_at
        big = progress.files[0]
        if big.phase == "downloading" and big.done >= 4 * MB and not cancelled_at:
            cancelled_at = time.monotonic()
            threading.Thread(target=pull.cancel).start()

    with pytest.raises(Cancelled):
        pull.run(cancel_in_the_middle)
    assert cancelled_at, "it was cancelled in the middle, and not whole before"
    assert store.pairs() == []
    local.faults.clear()
    plan = plan_pull(hub, BOTH)
    assert not list(hub.cache.rglob("*.incomplete"))
    assert plan.at_hand == 0 or plan.cached[1], "the draft alone may be whole"
    before = local.served["Big-9B-Q4_K_M.gguf"]
    pair = Pull(plan, hub, store).run(lambda _: None)
    assert local.served["Big-9B-Q4_K_M.gguf"] - before == 12 * MB
    assert pair.target.size == 12 * MB
    assert pair.draft and pair.draft.fetched, "what a cancelled pull finished is ours too"


def test_a_download_that_nobody_follows_ends(local: LocalHub, hub: Hub) -> None:
    """kill -9 of the program that pulls must not leave a process that downloads gigabytes."""
    local.add("acme/x", {"x.gguf": as_large_as(b"GGUF", 60 * MB)})
    slow(local, "x.gguf")
    download = Download(hub, [hub.repository("acme/x").files["x.gguf"]], verified=[False])
    started = threading.Event()

    def follow() -> None:
        with pytest.raises((Cancelled, HubError)):
            download.run(lambda progress: started.set() if progress.done else None)

    thread = threading.Thread(target=follow)
    thread.start()
    assert started.wait(20)
    child = download._child
    assert child and child.stdin
    child.stdin.close()  # what the system does when we are gone
    child.wait(5)
    thread.join(5)


def test_a_process_that_dies_is_reported_and_leaves_nothing_whole(
    local: LocalHub, hub: Hub, store: Store
) -> None:
    slow(local, "Big-9B")
    pull = Pull(plan_pull(hub, BOTH), hub, store)

    def kill(progress: Downloaded) -> None:
        child = pull._download._child
        assert child
        child.send_signal(signal.SIGKILL if os.name == "posix" else signal.SIGTERM)

    with pytest.raises(HubError, match="the process that downloads has ended .*: pull again"):
        pull.run(kill)
    assert store.pairs() == []


def test_another_quantisation_does_not_take_the_place_of_the_first(
    local: LocalHub, hub: Hub, store: Store, tmp_path: Path
) -> None:
    local.add(
        "acme/M-GGUF", {f"M-{q}.gguf": model_bytes(tmp_path, seed=i) for i, q in enumerate(("Q4_0", "Q8_0"))}
    )
    for which in ("Q4_0", "Q8_0"):
        Pull(plan_pull(hub, order(f"acme/M-GGUF:{which}")), hub, store).run(lambda _: None)
    assert [pair.name for pair in store.pairs()] == ["m", "m-q8_0"]


@pytest.mark.slow
def test_a_wait_that_the_hub_asks_for_is_shown(local: LocalHub, hub: Hub) -> None:
    """The client says so in its log alone, and seems to hang."""
    local.faults.append(Fault("store", "Big-1B", status=429, headers={"Retry-After": "0"}, times=1))
    file = hub.repository("acme/Big-1B-GGUF").files["Big-1B-Q8_0.gguf"]
    shown: list[Downloaded] = []
    Download(hub, [file], verified=[False]).run(shown.append)
    assert [progress.asked_to_wait for progress in shown if progress.asked_to_wait] == [1.0]
    assert "too many requests and asks to wait 31 s" in Downloaded((), None, None, 31.0).text


def test_a_split_model_is_pulled_whole_and_loaded_by_its_first_part(
    local: LocalHub, hub: Hub, store: Store, tmp_path: Path
) -> None:
    whole = model_bytes(tmp_path)
    part = b"GGUF" + struct.pack("<IQQ", 3, 0, 0)
    names = [f"Q8_0/m-Q8_0-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    local.add("acme/Split-GGUF", dict(zip(names, (whole, part + bytes(476), part + bytes(276)), strict=True)))
    pair = Pull(plan_pull(hub, order("acme/Split-GGUF:Q8_0")), hub, store).run(lambda _: None)
    assert [Path(path).name for path in pair.target.paths] == [name.rpartition("/")[2] for name in names]
    assert pair.target.size == len(whole) + 800
    assert len({Path(path).parent for path in pair.target.paths}) == 1, "llama.cpp looks beside the first"


def test_a_pair_that_does_not_fit_is_refused_before_the_download(local: LocalHub, hub: Hub) -> None:
    with pytest.raises(HubError, match="cannot draft for .*: token 5 is .*; nothing was downloaded"):
        plan_pull(hub, order("acme/Big-9B-GGUF", draft="acme/Big-0.5B-GGUF"))
    assert not list(hub.cache.rglob("blobs"))


def test_a_disk_without_room_is_reported_before_the_download(local: LocalHub, hub: Hub) -> None:
    head = local.repos["acme/Big-1B-GGUF"].files["Big-1B-Q8_0.gguf"].head
    local.add("acme/Huge-GGUF", {"Huge-Q4_K_M.gguf": as_large_as(head, 10**16)})
    with pytest.raises(HubError, match="10000 TB are to be downloaded to .* are free and 67.1 MB stay so"):
        plan_pull(hub, order("acme/Huge-GGUF"))


def test_what_is_no_language_model_is_reported_before_the_download(
    local: LocalHub, hub: Hub, tmp_path: Path
) -> None:
    llama, dream = (b"general.architecture\x08\0\0\0\5\0\0\0\0\0\0\0" + name for name in (b"llama", b"dream"))
    content = model_bytes(tmp_path).replace(llama, dream)
    local.add("acme/D-GGUF", {"D-Q4_K_M.gguf": content})
    with pytest.raises(HubError, match="is a diffusion model: .* choose another file"):
        plan_pull(hub, order("acme/D-GGUF"))


def test_offline_what_was_pulled_can_be_pulled_again(local: LocalHub, hub: Hub, store: Store) -> None:
    first = Pull(plan_pull(hub, BOTH), hub, store).run(lambda _: None)
    store.remove("big-9b", keep_files=True)
    asked = len(local.requests)
    offline = Hub(endpoint=local.endpoint, token=False, cache=hub.cache, offline=True)
    plan = plan_pull(offline, BOTH)
    assert (plan.to_fetch, plan.header_bytes) == (0, 0)
    for file, path in zip(
        plan.files, first.target.paths + (first.draft.paths if first.draft else ()), strict=True
    ):
        assert str(fetch(offline, file, verified=True, on_phase=lambda *_: None)) == path
    assert len(local.requests) == asked


# --- the command


@pytest.fixture
def at_local_hub(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command asks the local hub; all else is the real thing."""
    monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
    monkeypatch.setenv("HF_HUB_CACHE", str(hub.cache))


def printed_text(capsys: pytest.CaptureFixture[str]) -> str:
    out = capsys.readouterr()
    assert "Traceback" not in out.err
    return out.out + out.err


def test_the_catalogue_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["pull"]) == 0
    text = printed_text(capsys)
    assert "qwen3-8b " in text and "checked by every pull" in text and "edgespec bench" in text
    assert "unverified" not in text, "25 of 25 had that mark, as if nothing had been tried"


@pytest.mark.usefixtures("at_local_hub")
def test_pull_says_what_it_found_and_what_comes_next(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["pull", "acme/Big-9B-GGUF", "--draft", "acme/Big-1B-GGUF", "--check"]) == 0
    text = printed_text(capsys)
    assert "check   the vocabularies match (" in text and "were read for this check)" in text
    assert "installed" not in text
    assert cli.main(["pull", "acme/Big-9B-GGUF", "--draft", "acme/Big-1B-GGUF", "--name", "big"]) == 0
    assert "installed as big, now the default pair; next: edgespec chat" in printed_text(capsys)
    assert cli.main(["pull", "acme/Big-9B-GGUF", "--draft", "acme/Big-1B-GGUF", "--check"]) == 0
    assert "fetch   nothing: everything is already here" in printed_text(capsys)


@pytest.mark.slow
@pytest.mark.usefixtures("at_local_hub")
def test_a_wait_while_it_looks_is_reported(local: LocalHub, capsys: pytest.CaptureFixture[str]) -> None:
    local.faults.append(Fault("api", status=429, headers={"Retry-After": "1"}, times=1))
    assert cli.main(["pull", "acme/Big-1B-GGUF", "--target-only", "--check"]) == 0
    assert "too many requests and asks to wait 1 s" in printed_text(capsys)


@pytest.mark.usefixtures("at_local_hub")
def test_the_advice_names_the_draft_too(capsys: pytest.CaptureFixture[str]) -> None:
    """`pull REPO --draft REPO` advised a plan of the target alone."""
    assert cli.main(["pull", "acme/Big-9B-GGUF", "--draft", "acme/Big-1B-GGUF", "--check"]) == 0
    assert "`edgespec plan acme/Big-9B-GGUF --draft acme/Big-1B-GGUF` says how fast" in printed_text(capsys)
    assert cli.main(["pull", "acme/Big-9B-GGUF", "--yes", "--check"]) == 0
    assert "`edgespec plan acme/Big-9B-GGUF --draft acme/Big-1B-GGUF` says how fast" in printed_text(capsys)


@pytest.mark.usefixtures("at_local_hub")
def test_a_target_alone_is_reported_which_drafts_fit_and_why(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["pull", "acme/Big-9B-GGUF"]) == 2
    text = printed_text(capsys)
    assert "1. acme/Big-1B-GGUF (" in text
    assert "the same family (big) by the same owner, with 1 billion weights" in text
    assert "-  acme/Big-0.5B-GGUF does not fit: token 5 is " in text
    assert "edgespec pull acme/Big-9B-GGUF --draft acme/Big-1B-GGUF" in text
    assert cli.main(["list"]) == 0
    assert "no pair is installed" in printed_text(capsys)
    assert cli.main(["pull", "acme/Big-9B-GGUF", "--yes"]) == 0
    printed_text(capsys)
    assert cli.main(["list", "--json"]) == 0
    [pair] = json.loads(printed_text(capsys))["pairs"]
    assert (pair["name"], pair["draft"]["repo"], pair["default"]) == ("big-9b", "acme/Big-1B-GGUF", True)


@pytest.mark.usefixtures("at_local_hub")
@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["qwen3-88b"], 2, "the catalogue has no pair 'qwen3-88b': did you mean qwen3-8b"),
        (["acme/None-GGUF"], 1, "has no acme/None-GGUF, or it is private"),
        (["acme/Big-9B-GGUF:Q2_K"], 1, "acme/Big-9B-GGUF has no Q2_K: it has Q4_K_M"),
        (["a/b/c"], 1, "'a/b/c' is neither a pair of the catalogue nor a repository"),
        (["acme/Big-9B-GGUF", "--name", "Not Good"], 2, "'Not Good' cannot name a pair"),
        (["--name", "x"], 2, "there is nothing to pull"),
        ([""], 2, "the name of what to pull is empty"),
    ],
)
def test_mistakes_are_reported_in_one_sentence(
    capsys: pytest.CaptureFixture[str], words: list[str], code: int, text: str
) -> None:
    assert cli.main(["pull", *words]) == code
    printed = [line for line in printed_text(capsys).splitlines() if line.startswith("edgespec: ")]
    assert len(printed) == 1 and text in printed[0]


@pytest.mark.slow
def test_two_commands_lead_to_an_answer(
    local: LocalHub, tmp_path: Path, tiny_target: Path, tiny_draft: Path
) -> None:
    """As the README has it, the client pointed at the hub by HF_ENDPOINT, with Ctrl+C in the middle.

    The hub offers the embedded pair under the names that the catalogue has for another.
    """
    entry = find("qwen3-8b")
    local.add(entry.target.repo, {entry.target.file: tiny_target.read_bytes()})
    local.add(entry.draft.repo, {entry.draft.file: tiny_draft.read_bytes()})
    slow(local, entry.target.file)
    environment = {**os.environ, "HF_ENDPOINT": local.endpoint, "HF_HOME": str(tmp_path / "hf")}
    pull = [sys.executable, "-m", "edgespec", "pull", entry.name]
    if os.name == "posix":
        with subprocess.Popen(pull, env=environment, stderr=subprocess.PIPE, text=True) as first:
            assert first.stderr
            lines = iter(first.stderr.readline, "")
            assert next(line for line in lines if re.match(r"downloading  [2-7]\d%", line))
            first.send_signal(signal.SIGINT)
            rest = first.stderr.read()
            assert first.wait(10) == 130
        assert "are kept: the same command fetches the rest" in rest and "Traceback" not in rest
    local.faults.clear()
    done = subprocess.run(pull, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    if os.name == "posix":
        assert "are here already" in done.stderr
    answer = subprocess.run(
        [sys.executable, "-m", "edgespec", "run", "What is EdgeSpec?", "--seed", "1", "-n", "40"],
        env=environment, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.startswith("EdgeSpec")
    used = Store(config.data_folder()).get(entry.name)
    assert used.last_used and used.speed


# --- how far it is


def progress(
    *files: tuple[str, str, int, int], speed: float | None = None, left: float | None = None
) -> Downloaded:
    return Downloaded(
        tuple(FileProgress(name, size, phase, done) for name, phase, done, size in files),  # type: ignore[arg-type]
        speed,
        left,
    )


def test_progress_tells_speed_and_time_left() -> None:
    both = progress(("a", "downloading", 10**9, 4 * 10**9), ("b", "done", 5, 10**9), speed=2e7, left=150)
    assert both.text == "downloading 40%: 2.00 GB of 5.00 GB, 20.0 MB/s, 2 min left"
    assert progress(("a", "verifying", 5, 10)).text == "verifying a: 50%"
    waiting = progress(("a", "waiting", 0, 10), ("b", "done", 10, 10))
    assert waiting.text == "waiting for a, which another program downloads"


# --- what to expect of it here


@pytest.mark.usefixtures("at_local_hub")
def test_what_does_not_fit_the_memory_is_not_downloaded_without_a_yes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    memory_is(monkeypatch, 2**20, 2**30)
    words = ["pull", "acme/Big-9B-GGUF", "--draft", "acme/Big-1B-GGUF"]
    assert cli.main(words) == 2
    text = printed_text(capsys)
    assert "memory  it with a context of " in text and "can be had for that" in text
    assert "nothing was downloaded; --yes downloads it anyway" in text
    assert cli.main([*words, "--yes"]) == 0
    assert "installed as big-9b" in printed_text(capsys)


@pytest.mark.slow
@pytest.mark.usefixtures("at_local_hub")
def test_something_smaller_is_taken_or_offered(
    local: LocalHub, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory never had a say in what was downloaded."""
    large, small = (model_bytes(tmp_path, d=d, layers=4) for d in (512, 128))
    local.add("acme/M-GGUF", {"M-Q4_K_M.gguf": large, "M-Q3_K_M.gguf": small})
    room = int(len(large) * 0.8)
    monkeypatch.setattr("edgespec.commands.pull.command.memory_for_models", lambda: room)
    memory_is(monkeypatch, 2**28 + room, 2**30)
    assert cli.main(["pull", "acme/M-GGUF", "--target-only", "--check"]) == 0
    assert "target  M-Q3_K_M.gguf" in printed_text(capsys)
    cli.main(["pull", "acme/M-GGUF:Q4_K_M", "--target-only"])
    text = printed_text(capsys)
    assert "target  M-Q4_K_M.gguf" in text and "smaller `edgespec pull acme/M-GGUF:Q3_K_M` (" in text


@pytest.mark.parametrize(
    ("grades", "taken"),
    [
        ({"Q4_K_M": 2}, "Q4_K_M"),
        ({"Q4_K_M": 1, "Q4_0": 2}, "Q4_0"),
        ({"Q4_K_M": 1, "Q4_0": 1, "Q3_K_M": 2}, "Q4_K_M"),
        ({"Q4_K_M": 0, "Q4_0": 0, "Q3_K_M": 1}, "Q3_K_M"),
        ({"Q4_K_M": 0, "Q4_0": 0, "Q3_K_M": 0}, "Q4_K_M"),
    ],
)
def test_the_quantisation_is_the_one_that_suits_the_machine(
    grades: dict[str, int], taken: str, local: LocalHub, hub: Hub, tmp_path: Path
) -> None:
    """As many bits as usual where they fit at all; fewer than three never."""
    sizes = {"Q2_K": 1, "Q3_K_M": 2, "Q4_0": 3, "Q4_K_M": 4, "Q8_0": 5}
    files = {f"M-{name}.gguf": model_bytes(tmp_path, d=32, layers=layers) for name, layers in sizes.items()}
    projector = write_projector(tmp_path / "mmproj.gguf", "gemma3", 256).read_bytes()
    local.add("acme/M-GGUF", files | {"mmproj-M-f16.gguf": projector})
    names = {layers: name for name, layers in sizes.items()}

    def suitable(heads: Sequence[Sequence[Header]], projector: Chosen | None) -> int:
        assert projector and projector.first.name == "mmproj-M-f16.gguf", "it takes memory, too"
        return grades[names[heads[0][0].of_architecture("block_count") or 0]]

    for which, found in (("", taken), (":Q8_0", "Q8_0")):
        plan = plan_pull(hub, order(f"acme/M-GGUF{which}"), suitable=suitable)
        assert plan.target.quantisation == found


@pytest.mark.usefixtures("at_local_hub")
def test_a_split_model_is_measured_against_the_memory(
    local: LocalHub, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny_gguf.write_llama(tmp_path / "m.gguf", d=256, layers=4)
    names = split(path)
    local.add("acme/Split-GGUF", {name: (tmp_path / name).read_bytes() for name in names})
    assert cli.main(["pull", "acme/Split-GGUF", "--target-only", "--check"]) == 0
    assert "memory  it takes " in printed_text(capsys)
    memory_is(monkeypatch, 2**20, 2**30)
    assert cli.main(["pull", "acme/Split-GGUF", "--target-only"]) == 2
    text = printed_text(capsys)
    assert "memory  it with a context of " in text and "nothing was downloaded" in text


def split(path: Path) -> list[str]:
    """Splits a model's tensors in two files beside it, as llama-gguf-split does; returns their names."""
    reader, names = GGUFReader(path), [f"{path.stem}-{i:05d}-of-00002.gguf" for i in (1, 2)]
    tensors = reader.tensors
    for i, name in enumerate(names):
        writer = GGUFWriter(path.with_name(name), "llama")
        for key, field in reader.fields.items():
            if i == 0 and not key.startswith("GGUF.") and key != "general.architecture":
                kind = field.types[0]
                sub = field.types[-1] if len(field.types) > 1 else None
                writer.add_key_value(key, field.contents(), kind, sub)
        writer.add_uint16("split.no", i)
        writer.add_uint16("split.count", 2)
        writer.add_int32("split.tensors.count", len(tensors))
        for tensor in tensors[i::2]:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return names


@pytest.mark.usefixtures("at_local_hub")
def test_a_data_folder_that_cannot_be_written_is_noticed_before_the_download(
    local: LocalHub, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was said after the last byte."""
    config.data_folder().mkdir(parents=True, exist_ok=True)
    (config.data_folder() / "pairs.lock").mkdir()  # for whoever runs tests as root, who may write everywhere
    local.served.clear()
    assert cli.main(["pull", "acme/Big-9B-GGUF", "--target-only"]) == 2
    assert "pairs.json cannot be written" in printed_text(capsys)
    assert local.served["Big-9B-Q4_K_M.gguf"] < bytes_of(local) / 2


@pytest.mark.slow
def test_resets_in_the_middle_do_not_end_a_download(local: LocalHub, hub: Hub, store: Store) -> None:
    """One TCP reset ended a pull, five times of five."""
    local.add("acme/Big-9B-GGUF", {"Big-9B-Q4_K_M.gguf": as_large_as(
        local.repos["acme/Big-9B-GGUF"].files["Big-9B-Q4_K_M.gguf"].head, 12 * MB)})  # fmt: skip
    plan = plan_pull(hub, order("acme/Big-9B-GGUF"))
    local.faults.append(Fault("store", "Big-9B", reset=True, times=2))
    local.faults.append(Fault("store", "Big-9B", status=503, times=1))
    pair = Pull(plan, hub, store).run(lambda _: None)
    assert pair.target.size == 12 * MB and not any(fault.times for fault in local.faults)


@pytest.mark.usefixtures("at_local_hub")
def test_a_head_is_not_installed_as_a_model(
    local: LocalHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The multi-token heads of Gemma 4 passed the pair check, and were what commands took from then on."""
    path = tiny_gguf.write_llama(
        tmp_path / "h.gguf", d=32, layers=1, metadata={"general.architecture": "gemma4-assistant"}
    )
    local.add("acme/Head-GGUF", {"Head-Q8_0.gguf": path.read_bytes()})
    assert cli.main(["pull", "acme/Big-9B-GGUF", "--draft", "acme/Head-GGUF"]) == 1
    assert "it reads the cache of a gemma4, and the target's architecture is llama" in printed_text(capsys)


@pytest.mark.usefixtures("at_local_hub")
def test_a_head_in_the_targets_repository_is_proposed_before_a_draft_model(
    local: LocalHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tiny_gguf.write_llama(tmp_path / "t.gguf", layers=3, d=64, n_vocab=2048, ffn=512)
    files = {"Tall-9B-Q4_K_M.gguf": target.read_bytes()}
    wide = tiny_heads.write_eagle(tmp_path / "w.gguf", target_d=32, n_vocab=2048)
    fits = tiny_heads.write_eagle(tmp_path / "e.gguf", n_vocab=2048)
    files |= {"eagle3/a-wide.gguf": wide.read_bytes(), "eagle3/b-fits.gguf": fits.read_bytes()}
    local.add("acme/Tall-9B-GGUF", files)
    assert cli.main(["pull", "acme/Tall-9B-GGUF"]) == 2
    text = printed_text(capsys)
    assert "1. acme/Tall-9B-GGUF:eagle3/b-fits.gguf" in text
    assert "a head in the target's own repository" in text
    assert "a-wide.gguf does not fit: it reads hidden states of 32 numbers" in text
    assert cli.main(["pull", "acme/Tall-9B-GGUF", "--yes", "--name", "tall"]) == 0
    printed_text(capsys)
    assert cli.main(["show", "tall"]) == 0
    assert "check   it is a head made for such targets" in printed_text(capsys)


@pytest.mark.usefixtures("at_local_hub")
def test_a_target_that_brings_its_head_needs_no_draft(
    local: LocalHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    local.add(
        "acme/Own-9B-GGUF", {"Own-9B-Q4_K_M.gguf": tiny_heads.write_mtp(tmp_path / "o.gguf").read_bytes()}
    )
    assert cli.main(["pull", "acme/Own-9B-GGUF"]) == 0
    assert "has an MTP head in its file, so it needs no draft" in printed_text(capsys)


@pytest.mark.slow
@pytest.mark.usefixtures("at_local_hub")
def test_a_head_goes_before_the_catalogues_draft(
    local: LocalHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the target's file, or beside it; where --draft names another, that is taken."""
    entry = find("qwen3-8b")
    small = tiny_gguf.write_llama(tmp_path / "s.gguf", layers=1).read_bytes()
    local.add(entry.draft.repo, {entry.draft.file: small})
    own = tiny_heads.write_mtp(tmp_path / "o.gguf").read_bytes()
    local.add(entry.target.repo, {entry.target.file: own})
    assert cli.main(["pull", entry.name, "--check"]) == 0
    text = printed_text(capsys)
    assert "has an MTP head in its file, so it needs no draft" in text
    assert entry.draft.repo not in text.splitlines()[-1]
    plain = tiny_gguf.write_llama(tmp_path / "t.gguf", layers=3, d=64, n_vocab=512, ffn=8192).read_bytes()
    heads = {"eagle3/a.gguf": tiny_heads.write_eagle(tmp_path / "e.gguf").read_bytes()}
    local.add(entry.target.repo, {entry.target.file: plain, **heads})
    assert cli.main(["pull", entry.name, "--check"]) == 0
    assert f"{entry.target.repo}:eagle3/a.gguf is a head for it, and is taken in place of" in printed_text(
        capsys
    )
    assert cli.main(["pull", entry.name, "--draft", entry.draft.repo, "--check"]) == 0
    assert "eagle3" not in printed_text(capsys)


def test_a_file_name_that_was_never_looked_up_may_differ(local: LocalHub, hub: Hub, tmp_path: Path) -> None:
    """The catalogue was written without the hub; the quantisation it means is enough."""
    entry = find("qwen3-14b")
    assert "file" in entry.target.unverified
    local.add(entry.target.repo, {"Qwen_Qwen3-14B-Q4_K_M.gguf": model_bytes(tmp_path, d=128)})
    local.add(entry.draft.repo, {"other-Q8_0.gguf": model_bytes(tmp_path)})
    plan = plan_pull(hub, order(entry.name))
    assert plan.target.first.name == "Qwen_Qwen3-14B-Q4_K_M.gguf"


def test_the_projector_of_the_repository_comes_along(
    local: LocalHub, hub: Hub, store: Store, tmp_path: Path
) -> None:
    """In 16 bits if there are several; --text-only leaves it out; removing the pair deletes it."""
    projector = write_projector(tmp_path / "mmproj.gguf", "gemma3", 256).read_bytes()
    files = {f"mmproj-Big-9B-{kind}.gguf": projector for kind in ("f32", "Q8_0", "f16")}
    local.add("acme/Big-9B-GGUF", {**local.repos["acme/Big-9B-GGUF"].files, **files})
    plan = plan_pull(hub, BOTH)
    assert plan.projector and plan.projector.first.name == "mmproj-Big-9B-f16.gguf"
    assert plan.to_fetch == sum(file.size or 0 for file in plan.files)
    pair = Pull(plan, hub, store).run(lambda _: None)
    assert pair.projector and pair.projector.path.read_bytes() == projector
    assert pair.draft and pair.draft.path.name == "Big-1B-Q8_0.gguf"
    assert "reads   pictures, by mmproj-Big-9B-f16.gguf" in "\n".join(show_lines(pair, None))
    assert projector_of(pair.target.path, AUTO) == pair.projector.path
    assert plan_pull(hub, replace(BOTH, reads=False)).projector is None
    store.remove(pair.name)
    assert not pair.projector.path.exists()
