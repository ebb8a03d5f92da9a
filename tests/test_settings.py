"""The settings file: its settings apply, and mistakes in it are reported in a sentence."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import pytest

from edgespec.commands import flags
from edgespec.core.values import DRAFTERS, LONGEST_DRAFT
from edgespec.errors import SettingError
from edgespec.sampling.settings import NUMBERS, Sampling
from edgespec.server.requests.generation import Speculation
from edgespec_tui.settings.beginning import begin
from edgespec_tui.settings.settings import AppNames, Settings, begun, read
from edgespec_tui.settings.values import from_text
from edgespec_tui.widgets.external_editor import editor

A_KEY = "a key like f2, ctrl+r or escape, several with commas"
KNOWN = AppNames(
    themes=("edgespec-dark", "nord"),
    actions=("chat.panel", "chat.tint", "app.help"),
    is_key=lambda key: key in ("f2", "f3", "ctrl+r"),
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "settings" / "settings.toml"


def complaints(path: Path, text: str) -> list[str]:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return [sentence.removeprefix(str(path)) for sentence in read(path, known=KNOWN)[1]]


def test_what_the_file_says_holds(path: Path) -> None:
    told = complaints(
        path,
        """
        [chat]
        system = "Be brief."
        max_tokens = 100
        seed = 7
        [sampling]
        temperature = 0
        top_k = 40
        [speculation]
        on = false
        drafter = "lookup"
        draft_length = 3
        [screen]
        theme = "nord"
        panel = false
        tint = true
        [keys]
        chat.panel = "f3, ctrl+r"
        "app.help" = "f2"
        """,
    )
    assert told == []
    settings, complained = read(path, known=KNOWN)
    assert not complained and settings == Settings(
        system="Be brief.",
        max_tokens=100,
        seed=7,
        sampling={"temperature": 0, "top_k": 40},
        speculation=False,
        drafter="lookup",
        draft_length=3,
        theme="nord",
        panel=False,
        tint=True,
        keys={"chat.panel": "f3,ctrl+r", "app.help": "f2"},
    )
    talk = settings.new_conversation()
    assert (talk.system, talk.sampling, talk.seed, talk.max_tokens) == (
        "Be brief.",
        {"temperature": 0, "top_k": 40},
        7,
        100,
    )


def test_without_a_file_the_defaults_hold(path: Path) -> None:
    assert read(path) == (Settings(), ())


@pytest.mark.parametrize(
    "text, expected",
    [
        (
            "[chat]\n\n[sampling]\ntemperature = 'hot'",
            ": sampling.temperature is 'hot': it must be a number from 0 to 100",
        ),
        ("[sampling]\ntop_p = 1.5", ": sampling.top_p is 1.5: it must be a number from 0 to 1"),
        ("[sampling]\ntop_k = 4.5", ": sampling.top_k is 4.5: it must be a whole number of 0 or more"),
        (
            "[sampling]\ntop_k = true",
            ": sampling.top_k is true: it must be a whole number of 0 or more",
        ),
        (
            "[sampling]\ntemperature = nan",
            ": sampling.temperature is nan: it must be a number from 0 to 100",
        ),
        (
            "[sampling]\ntemprature = 1",
            ": sampling.temprature is not known: did you mean temperature?",
        ),
        ("[chat]\nmax_tokens = 0", ": chat.max_tokens is 0: it must be a whole number of 1 or more"),
        ("[chat]\nsystem = 5", ": chat.system is 5: it must be a text in quotes"),
        ("chat = 5", ": chat is 5: it must be a table, [chat]"),
        ("[[chat]]\nsystem = 'x'", ": chat is [{'system': 'x'}]: it must be a table, [chat]"),
        ("[speculation]\non = 'yes'", ": speculation.on is 'yes': it must be true or false"),
        (
            "speculation.drafter = 'magic'",
            f": speculation.drafter is 'magic': it must be one of {', '.join(DRAFTERS)}",
        ),
        (
            "[screen]\ntheme = 'pink'",
            ": screen.theme is 'pink': it must be one of edgespec-dark, nord",
        ),
        ("[scren]\ntheme = 'nord'", ": [scren] is not known: did you mean screen?"),
        ("[keys]\nchat.pannel = 'f2'", ": keys.chat.pannel is not known: did you mean chat.panel?"),
        (
            "[keys]\nchat.panel = 'f99'",
            ": keys.chat.panel is 'f99': it must be " + A_KEY,
        ),
        (
            "[keys]\nchat.panel = 5",
            ": keys.chat.panel is 5: it must be " + A_KEY,
        ),
        (
            "[keys]\nchat.panel = 'f2'\nchat.tint = 'f2'",
            ": keys.chat.tint is 'f2', which is that of chat.panel already",
        ),
    ],
)
def test_a_wrong_value_is_one_sentence_and_the_rest_holds(path: Path, text: str, expected: str) -> None:
    assert complaints(path, text) == [expected]
    if "[chat]" not in text and "chat =" not in text:
        path.write_text(text + "\n[chat]\nsystem = 'kept'\n")
        assert read(path, known=KNOWN)[0].system == "kept"


def test_a_file_that_is_no_toml_is_reported_with_its_line(path: Path) -> None:
    (told,) = complaints(path, "[chat]\nsystem = \n")
    assert "is not TOML" in told and "line 2" in told
    path.write_bytes(b"\xff\xfe[")
    assert "is not a text file (UTF-8)" in read(path)[1][0]
    path.unlink()
    path.mkdir()
    assert "cannot be read" in read(path)[1][0]


@pytest.mark.parametrize("name", NUMBERS)
def test_the_engine_accepts_what_the_app_accepts(name: str) -> None:
    ranged = NUMBERS[name]
    step = 1 if ranged.kind is int else 0.001
    for value in (ranged.low, ranged.high):
        Sampling(**{name: value})
    for value in (ranged.low - step, ranged.high + step):
        with pytest.raises(SettingError):
            Sampling(**{name: value})


def test_every_sampling_flag_of_a_chat_is_in_its_requests() -> None:
    """XTC, DRY, `--dry-breaker` and `--samplers` were taken, and had no effect."""
    parser = argparse.ArgumentParser()
    for add in (flags.add_conversation, flags.add_model, flags.add_sampling, flags.add_speculation):
        add(parser)
    numbers = {name: number.low for name, number in NUMBERS.items()}
    given = [f"--{name.replace('_', '-')}={low}" for name, low in numbers.items()]
    begun = begin(parser.parse_args([*given, "--dry-breaker", ".", "--samplers", "top_k;temp"]))
    assert begun.settings.sampling == numbers
    assert begun.options.extra == {"dry_sequence_breakers": ["."], "samplers": ["top_k", "temperature"]}


def test_a_setting_is_understood_as_it_is_typed() -> None:
    assert from_text("temperature 0.5") == ("temperature", 0.5)
    assert from_text("top-k=40") == ("top_k", 40)
    assert from_text("temp 1") == ("temperature", 1)
    assert from_text("seed default") == ("seed", None)
    for text, told in (
        ("temperature hot", "temperature is 'hot': it must be a number from 0 to 100"),
        ("temperature nan", "temperature is 'nan': it must be a number"),
        ("seed -1", "seed is '-1': it must be a whole number of 0 or more"),
        ("temprature 1", "'temprature' is not a setting: did you mean temperature?"),
        ("p 1", "'p' is not a setting: there are"),
        ("", "'' is not a setting: there are temperature"),
        ("seed", "seed takes one value, or `default`"),
        ("seed 1 2", "seed takes one value"),
    ):
        with pytest.raises(SettingError) as error:
            from_text(text)
        assert str(error.value).startswith(told)


# ---- the file as a file -----------------------------------------------------------------------------------


def test_the_file_begins_with_examples_all_of_which_would_hold(path: Path) -> None:
    assert read(begun(path), known=KNOWN) == (Settings(), ())
    without = "\n".join(
        line.removeprefix("# ") if "=" in line else line for line in path.read_text().splitlines()
    )
    known = AppNames(("edgespec-dark",), ("chat.panel", "chat.speculation"), lambda _: True)
    path.write_text(without)
    settings, told = read(path, known=known)
    assert told == () and settings.seed == 1 and settings.keys["chat.speculation"] == "f4,alt+s"
    path.write_text("mine")
    assert begun(path).read_text() == "mine"


def test_the_editor_is_the_one_that_was_chosen(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shell = "sh" if os.name == "posix" else "cmd"
    assert editor(path, {"VISUAL": f"{shell} -w", "EDITOR": "no"}) == [shell, "-w", str(path)]
    with pytest.raises(SettingError, match="EDITOR is 'no-such-editor', which cannot be found"):
        editor(path, {"EDITOR": "no-such-editor"})
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SettingError, match="set EDITOR to one"):
        editor(path, {})


def test_the_longest_draft_is_one_number_everywhere(path: Path) -> None:
    """Settings and flag took up to 64, and the server refused each answer beyond 48."""
    path.parent.mkdir()
    path.write_text(f"[speculation]\ndraft_length = {LONGEST_DRAFT + 1}")
    settings, (complaint,) = read(path)
    assert settings.draft_length is None and f"from 0 to {LONGEST_DRAFT}" in complaint
    path.write_text(f"[speculation]\ndraft_length = {LONGEST_DRAFT}")
    assert read(path)[0].draft_length == LONGEST_DRAFT
    assert Speculation(draft_length=LONGEST_DRAFT).draft_length == LONGEST_DRAFT
    with pytest.raises(ValueError, match=f"less than or equal to {LONGEST_DRAFT}"):
        Speculation(draft_length=LONGEST_DRAFT + 1)


@pytest.mark.parametrize(
    "text, expected",
    [
        ("a = " + "[" * 30_000, " is nested too deeply: using the defaults"),
        ("[keys]\n" + "a." * 2_000 + "a = 1", " is nested too deeply: using the defaults"),
        ("[chat]\nseed = " + "1" * 10_000, " is not TOML: exceeds the limit (4300 digits)"),
    ],
)
def test_what_no_parser_bears_is_reported(path: Path, text: str, expected: str) -> None:
    """They ended the chat in a traceback."""
    (told,) = complaints(path, text)
    assert told.startswith(expected)


def test_of_very_many_mistakes_the_first_are_reported(path: Path) -> None:
    """A wrong file of 8,000 lines took 40 s, and its complaints an hour."""
    told = complaints(path, "[chat]\n" + "".join(f"k{i} = 1\n" for i in range(1000)))
    assert told[0] == ": chat.k0 is not known: there are system, model, max_tokens, seed"
    assert told[-1] == ": 992 more values cannot be used" and len(told) == 9
