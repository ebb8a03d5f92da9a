"""docs/chat.md says what the app does: every key and setting, and no key, command or setting that is none."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from edgespec_tui.key_bindings import bindings, known_to_app
from edgespec_tui.settings.settings import read
from edgespec_tui.settings.slash_commands import COMMANDS

TEXT = (Path(__file__).resolve().parent.parent / "docs" / "chat.md").read_text()
SIGNS = {"left_square_bracket": "[", "right_square_bracket": "]", "escape": "esc"}
ROWS = re.findall(r"^\| (.+?) \| .+? \| `([a-z_.]+)` \|$", TEXT, re.MULTILINE)


def test_every_key_is_there_with_what_it_is_called() -> None:
    documented = set(re.findall(r"`([a-z]+\.[a-z_]+)`", TEXT))
    lacking = [one for one in bindings() if one.id not in documented]
    assert not [f"| {one.key} | {one.tooltip or one.description} | `{one.id}` |" for one in lacking]
    keys = {binding.id: binding.key for binding in bindings()}
    assert len(ROWS) > 25
    for shown, name in ROWS:
        known = [SIGNS.get(key, key) for key in keys[name].split(",")]
        assert [key.strip().lower() for key in shown.split(",")] == known, name


def test_commands_of_its_table_are_those_of_help() -> None:
    """`/help` lists all of them; the table has those about which there is more to say."""
    shown = re.findall(r"`(/[a-z]+)[^`]*`", "\n".join(re.findall(r"^\| (`/.+?`) \| ", TEXT, re.MULTILINE)))
    assert len(shown) > 10 and set(shown) <= {command.name for command in COMMANDS}


def test_the_settings_that_it_shows_hold_and_none_is_missing(tmp_path: Path) -> None:
    example = re.search(r"```toml\n(.*?)```", TEXT, re.DOTALL)
    assert example
    path = tmp_path / "settings.toml"
    path.write_text(example[1])
    settings, complaints = read(path, known=known_to_app())
    assert complaints == () and settings.keys
    assert set(tomllib.loads(example[1])) == {"chat", "sampling", "speculation", "screen", "tools", "keys"}
