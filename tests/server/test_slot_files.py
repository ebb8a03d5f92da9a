"""What llama-server's clients do with slots (save, restore, forget), and prompts after a restart."""

from __future__ import annotations

import os
import signal
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from served import Served, served, until

PROMPT = "The dog " * 60
GREEDY = {"temperature": 0, "n_predict": 8}


@pytest.fixture(scope="module")
def slots(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, Path]]:
    folder = tmp_path_factory.mktemp("slots")
    with served(folder, "--slots", "2", "--slot-save-path", str(folder), "--cache-ram", "0") as server:
        yield server, folder


def asked(server: Served, slot: int, prompt: str = PROMPT) -> Any:
    return server.ask("/completion", {"prompt": prompt, "id_slot": slot, **GREEDY}).json


def done(server: Served, slot: int, action: str, name: str | None = None) -> Any:
    return server.ask(f"/slots/{slot}?action={action}", {"filename": name} if name else {})


def test_a_slot_is_saved_restored_and_forgotten(slots: tuple[Served, Path]) -> None:
    server, folder = slots
    first = asked(server, 1)
    saved = done(server, 1, "save", "one.bin").json
    assert saved["id_slot"] == 1 and saved["n_saved"] >= first["timings"]["prompt_n"]
    assert saved["n_written"] == (folder / "one.bin").stat().st_size and saved["timings"]["save_ms"] >= 0
    assert done(server, 1, "erase").json == {"id_slot": 1, "n_erased": saved["n_saved"]}
    assert asked(server, 1)["timings"]["cache_n"] == 0
    done(server, 1, "erase")
    restored = done(server, 0, "restore", "one.bin").json
    assert restored["n_restored"] == saved["n_saved"] and restored["n_read"] == saved["n_written"]
    again = asked(server, 0, PROMPT + "cat")
    assert again["timings"]["cache_n"] >= first["timings"]["prompt_n"] - 1
    assert asked(server, 0)["content"] == first["content"]
    magic, version, words, no_token, _, n = struct.unpack("<IIIiII", (folder / "one.bin").read_bytes()[:24])
    assert (magic, version, no_token, n) == (0x67677371, 3, -1, saved["n_saved"]) and words == n + 4


def test_what_cannot_be_restored_is_stated_and_changes_nothing(slots: tuple[Served, Path]) -> None:
    server, folder = slots
    asked(server, 0)
    done(server, 0, "save", "good.bin")
    data = (folder / "good.bin").read_bytes()
    (folder / "damaged.bin").write_bytes(data[:-100] + bytes([data[-100] ^ 1]) + data[-99:])
    (folder / "other.bin").write_bytes(data[:-36] + bytes(32) + data[-4:])
    (folder / "short.bin").write_bytes(data[:9])
    (folder / "folder").mkdir()
    for slot, action, name, word in (
        (0, "restore", "damaged.bin", "damaged"),
        (0, "restore", "other.bin", "another model"),
        (0, "restore", "short.bin", "no slot's file"),
        (0, "restore", "missing.bin", "no such file"),
        (0, "restore", "folder", "no such file"),
        (0, "restore", "../good.bin", "filename"),
        (0, "save", None, "filename is missing"),
        (2, "save", "x.bin", "there is no slot 2"),
        (0, "melt", "x.bin", "action"),
    ):
        got = done(server, slot, action, name)
        assert got.status == 400 and word in got.error["message"], got.body
    assert asked(server, 0)["timings"]["prompt_n"] == 1


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="there is no SIGTERM")
@pytest.mark.parametrize("how", [pytest.param(signal.SIGTERM, marks=pytest.mark.slow), signal.SIGKILL])
def test_prompts_are_there_after_a_restart(how: signal.Signals, tmp_path: Path) -> None:
    """After kill -9, as far as they were written while nobody asked."""
    found = []
    for turn in range(2):
        flags = ("--cache-disk", "1", "--cache-ram", "0")
        with served(tmp_path, *flags, EDGESPEC_CACHE_DIR=str(tmp_path)) as server:
            found.append(asked(server, 0, "It was a day like any other. " * 130)["timings"])
            worker = server.worker
            if turn == 0 and how == signal.SIGKILL:
                until(lambda: len(list((tmp_path / "prompts").glob("*.state"))) >= 2)
                worker.suspend()
            server.process.send_signal(how)
            server.process.wait(20)
            if worker.is_running():
                worker.kill()
    assert found[0]["cache_n"] == 0 and found[0]["prompt_n"] > 512
    assert found[1]["cache_n"] >= 1024 and found[1]["prompt_n"] < 64, "an end so short is not worth a file"
