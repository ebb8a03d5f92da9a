"""Keys and themes that a settings file may name."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgespec_tui.key_bindings import bindings, is_key, known_to_app
from edgespec_tui.settings.settings import Settings, begun, read


def test_everything_that_has_a_key_can_be_given_another() -> None:
    names = [binding.id for binding in bindings()]
    assert len(set(names)) == len(names) > 30
    assert {"app.quit", "chat.panel", "input.send", "turn.copy", "models.stop", "sessions.undo"} <= set(names)


def test_the_keys_that_the_app_has_are_keys() -> None:
    for binding in bindings():
        for key in binding.key.split(","):
            assert is_key(key.strip()), (binding.id, key)


@pytest.mark.parametrize("name", ["f99", "ctrl+", "hyperspace+x", "", "ctrl+nokey", "chat.panel"])
def test_what_is_no_key_is_none(name: str) -> None:
    assert not is_key(name)


def test_the_examples_of_the_settings_file_hold_in_the_app(tmp_path: Path) -> None:
    path = begun(tmp_path / "settings.toml")
    path.write_text("\n".join(line.removeprefix("# ") if "=" in line else line for line in
                              path.read_text().splitlines()))  # fmt: skip
    settings, complaints = read(path, known=known_to_app())
    assert complaints == () and settings != Settings()
