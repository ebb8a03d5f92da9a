"""Whatever file a flag names, it is read, or refused in a sentence: nobody waits for ever."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import threading
from pathlib import Path

import pytest
from commands import EDGESPEC, refused

from edgespec.commands.output_file import check_writable
from edgespec.errors import SettingError
from edgespec.system import named_file
from edgespec.system.named_file import read_text
from edgespec_tui.settings import system_prompts
from edgespec_tui.settings.settings import Settings, read
from edgespec_tui.widgets.attached_files import read_file, with_files
from edgespec_tui.widgets.question import QuestionText

pytestmark = pytest.mark.skipif(os.name != "posix", reason="pipes and devices with names")
FLAGS = (
    ("run", "--json-schema", "hello"),
    ("run", "--grammar", "hello"),
    ("run", "--chat-template-file", "hello"),
    ("serve", "--api-key-file"),
    ("serve", "--config"),
    ("bench", "--prompts"),
    ("chat", "--api-key-file", "--endpoint", "127.0.0.1:1"),
    ("doctor", "--api-key-file", "--endpoint", "127.0.0.1:1"),
)


@pytest.fixture
def pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(named_file, "WRITER_S", 0.02)
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


@pytest.mark.parametrize("command, flag, rest", [(c, f, r) for c, f, *r in FLAGS])
def test_a_pipe_a_folder_and_a_device_are_refused_where_a_file_is_wanted(
    command: str, flag: str, rest: list[str], pipe: Path
) -> None:
    """A pipe without a writer was waited for, and a device without an end was read until memory was gone."""
    printed = refused(command, flag, pipe, *rest)
    assert f"{flag} {pipe} cannot be read: nothing is written into this pipe" in printed
    assert f"{flag} {pipe.parent} cannot be read: Is a directory" in refused(
        command, flag, pipe.parent, *rest
    )
    assert f"{flag} /dev/zero has more than" in refused(command, flag, "/dev/zero", *rest)


def test_a_pipe_with_a_writer_is_read_to_its_end(pipe: Path) -> None:
    def write() -> None:
        with pipe.open("w", encoding="utf-8") as file:
            for _ in range(3):
                file.write("é" * 50_000)
                file.flush()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        named_file.WRITER_S = 10.0
        assert read_text("--x", pipe, most=150_000) == "é" * 150_000
    finally:
        writer.join()


def test_what_a_shell_writes_into_a_pipe_of_its_own_is_read() -> None:
    """`--api-key-file <(pass show key)`: the writer takes its time."""
    with subprocess.Popen(["sh", "-c", "sleep 0.1; printf key"], stdout=subprocess.PIPE) as child:
        assert child.stdout
        assert read_text("--x", f"/dev/fd/{child.stdout.fileno()}", most=10) == "key"


@pytest.mark.skipif(not shutil.which("bash"), reason="the shell that has <(...)")
def test_a_shells_own_pipe_is_there_in_the_child_too() -> None:
    """It was "No such file or directory": the command runs in a child, which had none of our open files."""
    run = f"{shlex.join(EDGESPEC)} run --pair embedded"
    line = f"{run} --json-schema <(sleep 0.1; echo '{{\"const\": 12}}') hello"
    ended = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60)
    assert ended.stdout == "12\n", ended.stderr


@pytest.mark.parametrize(
    "content, why",
    [
        (b"\xff\xfe", "cannot be read: it is not text in UTF-8"),
        (b"a" * 11, "has more than 10 characters: name another file"),
        (b"a" * 1000, "has more than 10 characters: name another file"),
    ],
)
def test_what_is_no_text_or_too_long_is_reported(tmp_path: Path, content: bytes, why: str) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(SettingError, match=f"^--x {tmp_path / 'x'} {why}$"):
        read_text("--x", tmp_path / "x", most=10)
    (tmp_path / "x").write_bytes("é".encode() * 10)
    assert len(read_text("--x", tmp_path / "x", most=10)) == 10
    with pytest.raises(SettingError, match="is not the name of a file"):
        read_text("--x", "a\0b", most=10)


@pytest.mark.parametrize(
    "kind, why",
    [
        ("pipe", "it is not a regular file"),
        ("device", "it is not a regular file"),
        ("folder", "it is a folder"),
        ("terabyte", "is larger than|has 1,099,511,627,776 bytes, and"),
    ],
)
def test_whatever_a_chat_finds_in_a_files_place_is_reported(
    tmp_path: Path, kind: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipe instead of the settings or of a saved prompt was waited for; a device filled the memory."""
    monkeypatch.setenv("EDGESPEC_CONFIG_DIR", str(tmp_path))
    (tmp_path / "prompts").mkdir()
    settings, prompt = tmp_path / "settings.toml", tmp_path / "prompts/p.md"
    for path in (settings, prompt):
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "device":
            path.symlink_to("/dev/zero")
        elif kind == "folder":
            path.mkdir()
        else:
            with path.open("wb") as file:
                file.truncate(2**40)
    said = read(settings)
    assert (
        said[0] == Settings()
        and len(said[1]) == 1
        and re.search(f"({why}).*: using the defaults", said[1][0])
    )
    with pytest.raises(SettingError, match=why):
        system_prompts.text("p")
    with pytest.raises(SettingError, match=why):
        read_file(str(prompt))
    if kind != "folder":  # a folder's name after an @ is no file's
        with pytest.raises(SettingError, match=why):
            with_files(QuestionText(f"see @{prompt}"))


def test_a_pipe_that_takes_a_files_place_just_now_is_not_waited_for(
    pipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(named_file.stat, "S_ISREG", lambda mode: True)
    assert named_file.regular_content(pipe, most=10) == b""
    writer = os.open(pipe, os.O_RDWR)  # one that writes nothing
    try:
        assert named_file.regular_content(pipe, most=10) == b""
    finally:
        os.close(writer)


def test_a_report_takes_the_place_of_a_file_alone(pipe: Path) -> None:
    """A pipe was waited for; a device like /dev/null would have been replaced."""
    for there in (pipe, Path("/dev/null")):
        with pytest.raises(SettingError, match="cannot be written: it is not an ordinary file"):
            check_writable("--json", there)
