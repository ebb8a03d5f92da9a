"""What models, servers, files and chats say is shown in the app, and never obeyed by the terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import posix
from hostile_app import HOSTILE, OBEYED, hostile_app, shown_everywhere
from in_terminal import Terminal
from test_foreign_servers import delta, end, server
from test_tui_chat import on_a_loop

from edgespec_tui.terminal.shown_text import Content, visible
from edgespec_tui.widgets.segments import find_cut

ROOT = Path(__file__).parent.parent


def test_what_a_terminal_obeys_becomes_one_visible_character_each() -> None:
    assert visible("a\x1b[2Jb\tc\nd\x7f\x9b\u202e\ud800") == "a␛[2Jb\tc\nd␡\ufffd\ufffd\ufffd"
    assert len(visible(HOSTILE)) == len(HOSTILE) and visible(visible(HOSTILE)) == visible(HOSTILE)
    assert visible("größer 日本 👩‍💻 שלום") == "größer 日本 👩‍💻 שלום"
    told = Content.from_markup("[b]$who[/b]", who="[u]\x1b[2J")
    assert told.plain == "[u]␛[2J" and Content.assemble("\x1b", ("\x9b", "bold")).plain == "␛\ufffd"


def test_all_content_is_made_by_the_one_that_shows_it() -> None:
    """One import of Textual's own class is one place that a terminal obeys."""
    own = re.compile(r"^from textual\.content import .*\bContent\b", re.MULTILINE)
    files = [path for path in (ROOT / "tui").rglob("*.py") if own.search(path.read_text())]
    assert [path.name for path in files] == ["shown_text.py"]


def test_a_text_with_odd_line_ends_is_cut_where_markdown_has_a_line() -> None:
    """Lines were counted as Python does, which ends them at a form feed, too."""
    text = "\n\n".join(f"a\x0cb {i}" for i in range(20))
    cut, _ = find_cut(text)
    assert cut and text[cut:].startswith("a\x0cb ")


@pytest.mark.slow
@posix
@on_a_loop
async def test_every_screen_shows_hostile_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    app = hostile_app(tmp_path)
    app.seen = []  # type: ignore[attr-defined]
    async with app.run_test(size=(150, 50)) as pilot:
        await shown_everywhere(pilot)
    pages: list[str] = app.seen  # type: ignore[attr-defined]
    for page in pages:
        assert not any(mark in page for mark in OBEYED), page
    for i, page in enumerate(pages):
        assert "evil" not in page or "\u241b" in page, (i, page)
    assert sum("\u241b]52;c" in page for page in pages) > 12


@pytest.mark.slow
@posix
def test_no_byte_of_hostile_text_is_obeyed_by_a_terminal(tmp_path: Path) -> None:
    """An answer set the window's title, wrote the clipboard, cleared the screen; an OSC hid the rest."""
    master, slave = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "150", "LINES": "50"}
    script = [sys.executable, str(ROOT / "tests" / "hostile_app.py"), str(tmp_path)]
    child = subprocess.Popen(script, stdin=slave, stdout=slave, stderr=slave, env=environment)
    os.close(slave)
    written, end = b"", time.monotonic() + 60
    while child.poll() is None or select.select([master], [], [], 0)[0]:
        assert time.monotonic() < end, written[-2000:]
        if select.select([master], [], [], 0.1)[0]:
            try:
                written += os.read(master, 65536)
            except OSError:
                break
    child.kill()
    os.close(master)
    text = re.sub(
        "\x1b\\]22;[a-z]*\x07", "", written.decode("utf-8", "replace")
    )  # Textual's: the pointer's shape
    assert child.wait() == 0, text[-3000:]
    assert "\u241b]52;c" in text, "it was shown"
    found = [mark for mark in OBEYED if mark in text]
    assert not found, [text[max(0, text.find(mark) - 200) : text.find(mark) + 50] for mark in found]


LISTED = json.dumps({"data": [{"id": HOSTILE}]}).encode()
SEVERAL = json.dumps({"data": [{"id": HOSTILE}, {"id": "b" + HOSTILE}]}).encode()


@pytest.mark.slow
@posix
@pytest.mark.parametrize(
    ("command", "listing"),
    [
        (["chat", "-p", "hi"], LISTED),
        (["chat", "-p", "hi"], SEVERAL),
        (["chat", "--plain"], SEVERAL),
        (["run", "--regex", r"\x1b\]2;X\x07", "-n", "20", "hi"], b""),
        (["run", HOSTILE, "-n", "1"], b""),
        (["run", "--target", f"{HOSTILE}.gguf", "hi"], b""),
    ],
)
def test_no_command_writes_what_a_terminal_obeys(command: list[str], listing: bytes) -> None:
    with server(delta(content=HOSTILE) + end(), listing=listing) as (client, _):
        where = ["--endpoint", f"http://127.0.0.1:{client.server.port}/v1"] if listing else []
        with Terminal(*command, *where) as terminal:
            if "--plain" in command:
                terminal.wait_for("Which one?")
                terminal.type("1\rhi\r")
                terminal.wait_for("first token after")
            else:
                with pytest.raises(AssertionError, match="ended without"):
                    terminal.wait_for("what nobody writes")
    assert not [mark for mark in OBEYED if mark in terminal.shown], terminal.shown
    assert "evil" in terminal.shown or "-n" in command  # which writes no name and no text of others
