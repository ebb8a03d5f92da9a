"""A server whose settings are in a file, and the files that have it started by the system."""

from __future__ import annotations

import configparser
import plistlib
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from commands import refused
from served import Served, served, until

ROOT = Path(__file__).resolve().parent.parent.parent
DOCS = (ROOT / "docs" / "service.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    """Returns the first block of a language in the docs."""
    found = re.search(rf"```{language}\n(.*?)```", DOCS, re.DOTALL)
    assert found
    return found[1]


@pytest.mark.slow
def test_the_file_of_the_docs_is_read_by_every_serve(tmp_path: Path) -> None:
    folder = tmp_path / "config"
    folder.mkdir()
    (folder / "serve.toml").write_text(block("toml"), encoding="utf-8")
    with served(tmp_path, "--slots", "2", EDGESPEC_CONFIG_DIR=str(folder)) as server:
        props = server.ask("/props").json
        assert props["total_slots"] == 2, "what the command line says beats the file"
        assert props["default_generation_settings"]["n_ctx"] == 2048
        assert f"using the settings in {folder / 'serve.toml'}" in server.logged()
        until(lambda: "GET '/props' 200" in server.logged())  # its log is that of the file


@pytest.mark.slow
def test_paths_are_relative_to_the_file_and_a_model_named_takes_the_place_of_its(
    tmp_path: Path, tiny_target: Path
) -> None:
    (tmp_path / "keys").write_text("secret\n")
    shutil.copy(tiny_target, tmp_path / "mine.gguf")
    path = tmp_path / "any.toml"
    lines = ('target = "mine.gguf"', 'api_key_file = "keys"', 'cors-origin = ["http://a.example"]')
    path.write_text("\n".join([*lines, "no-draft = true"]))
    with served(tmp_path, "--config", str(path)) as server:
        assert server.ask("/v1/models").status == 401
        listed = server.ask("/v1/models", headers={"x-api-key": "secret", "Origin": "http://a.example"})
        assert [model["id"] for model in listed.json["data"]][0] == "mine"
        assert listed.headers["access-control-allow-origin"] == "http://a.example"
    with served(tmp_path, "embedded", "--config", str(path)) as server:
        listed = server.ask("/v1/models", headers={"x-api-key": "secret"})
        assert listed.json["data"][0]["id"] == "embedded" and listed.json["data"][0]["meta"]["draft"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("colour = 1", ("there is no setting 'colour'", "there are alias,")),
        ("port = 'x'", ("port is 'x'", "a whole number")),
        ("port = [1]", ("port is [1]",)),
        ("no-slots = 1", ("no-slots is 1", "true or false")),
        ("log = 'loud'", ("log is 'loud'", "quiet, text, json")),
        ("port = 99999", ("--port is 99999",)),
        ("port = ", ("is not TOML",)),
        ("owned = true", ("there is no setting",)),
        ("a = " + "[" * 5000 + "]" * 5000, ("no",)),
    ],
)
def test_a_mistake_in_the_file_is_named(tmp_path: Path, text: str, words: tuple[str, ...]) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    printed = refused("serve", "--config", path)
    assert all(word in printed for word in words), printed
    assert "--port" in printed or str(path) in printed


def test_a_file_that_is_not_there_is_reported(tmp_path: Path) -> None:
    assert "cannot be read" in refused("serve", "--config", tmp_path / "absent.toml")


def test_the_unit_and_the_agent_are_well_formed_and_start_the_same_command() -> None:
    unit = configparser.ConfigParser(interpolation=None)
    unit.read_string(block("ini"))
    program, *rest = unit["Service"]["ExecStart"].split()
    agent = plistlib.loads(block("xml").encode())
    assert agent["ProgramArguments"][1:] == rest == ["serve"]
    assert Path(program).name == Path(agent["ProgramArguments"][0]).name == "edgespec"
    installed = Path(sys.executable).with_name("edgespec")
    assert subprocess.run([installed, *rest, "--help"], capture_output=True, check=False).returncode == 0
    if analyse := shutil.which("systemd-analyze"):
        assert subprocess.run([analyse, "--version"], capture_output=True, check=False).returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(
    not hasattr(signal, "SIGHUP") or signal.getsignal(signal.SIGHUP) is signal.SIG_IGN,
    reason="there is no SIGHUP, or it is ignored (nohup)",
)
def test_the_file_is_read_again_when_asked_and_what_needs_a_restart_is_named(tmp_path: Path) -> None:
    path, keys = tmp_path / "any.toml", tmp_path / "keys"
    path.write_text('api-key-file = "keys"\ntemperature = 0.5\n')
    keys.write_text("old\n")

    def asked_again(server: Served, words: str) -> None:
        n = server.logged().count(words)
        server.process.send_signal(signal.SIGHUP)
        until(lambda: server.logged().count(words) > n)

    def temperature(server: Served, key: str) -> float | None:
        got = server.ask("/props", headers={"x-api-key": key})
        told = got.json["default_generation_settings"]["params"] if got.status == 200 else {}
        return told.get("temperature")

    with served(tmp_path, "--config", str(path), "--slots", "2") as server:
        assert temperature(server, "old") == 0.5
        path.write_text('api-key-file = "keys"\ntemperature = 0.25\nport = 1\nctx = 999\nslots = 7\n')
        keys.write_text("new\n")
        asked_again(server, "again: temperature, keys changed; after a restart: ctx")
        assert temperature(server, "new") == 0.25 and temperature(server, "old") is None
        path.write_text("temperature = 'hot'")
        asked_again(server, "the settings stay as they are: ")
        assert temperature(server, "new") == 0.25
        keys.write_text("")
        path.write_text('api-key-file = "keys"')
        asked_again(server, "the settings stay as they are: --api-key-file")
        assert temperature(server, "new") == 0.25


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="no such sockets here")
def test_systemd_hears_when_it_is_ready_that_it_lives_and_that_it_ends(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(20)
        told = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "400000"}
        with served(tmp_path, **told) as server:
            assert manager.recv(4096).decode() == f"READY=1\nMAINPID={server.process.pid}"
            assert [manager.recv(4096) for _ in range(3)] == [b"WATCHDOG=1"] * 3
            server.worker.send_signal(signal.SIGSTOP)  # it is there and does nothing: no sign of life
            manager.settimeout(1.0)
            with pytest.raises(TimeoutError):
                for _ in range(3):  # one may have been on its way
                    manager.recv(4096)
            server.worker.send_signal(signal.SIGCONT)
            manager.settimeout(20)
            assert manager.recv(4096) == b"WATCHDOG=1"
            server.process.send_signal(signal.SIGTERM)
            heard = manager.recv(4096)
            while heard == b"WATCHDOG=1":
                heard = manager.recv(4096)
            assert heard == b"STOPPING=1"
