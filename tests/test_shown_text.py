"""Text from a file, a hub or a model is shown on the terminal, and never obeyed."""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest
import tiny_gguf
from commands import posix
from hub_models import model_bytes
from local_hub import LocalHub

from edgespec.commands import cli
from edgespec.errors import EdgeSpecError
from edgespec.system.isolate import reporting
from edgespec.system.terminal import guarded, one_line, shown

pytestmark = pytest.mark.usefixtures("one_oracle")

HOSTILE = "\x1b]52;c;ZXZpbA==\x07\x1b[2J\x9b31m\rsafe\x7f"


def harmless(text: str) -> bool:
    return all(character.isprintable() or character in "\n\t" for character in text)


def test_control_characters_can_be_seen() -> None:
    assert shown("a\x1b[2Jb\tc\nd\r\ne\rf\x9b") == "a\\x1b[2Jb\tc\nd\ne\\x0df\\x9b"
    assert harmless(shown(HOSTILE)) and shown("größer 日本 🙂") == "größer 日本 🙂"


def test_a_name_is_one_line_of_a_sensible_length() -> None:
    assert one_line("a\nb\tc") == "a b c"
    assert len(one_line("x" * 100_000)) == 200


def test_only_what_begins_a_line_anew_is_obeyed(capsys: pytest.CaptureFixture[str]) -> None:
    """So that commands can go on writing how far they are."""
    with guarded():
        print(f"\r\033[Kreading {HOSTILE}", end="", file=sys.stderr)
        print(f"\rgrowing {HOSTILE}", file=sys.stderr)
    err = capsys.readouterr().err
    assert err == f"\r\033[Kreading {shown(HOSTILE)}\rgrowing {shown(HOSTILE)}\n"


def test_an_answer_is_shown_on_a_terminal_and_whole_in_a_file() -> None:
    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return True

    for stream, wanted in ((Screen(), shown(HOSTILE)), (io.StringIO(), HOSTILE)):
        with redirect_stdout(stream):
            with guarded():
                print(HOSTILE, end="")
            assert sys.stdout is stream and stream.getvalue() == wanted


def test_an_error_is_a_sentence_however_long_its_cause(capsys: pytest.CaptureFixture[str]) -> None:
    """An architecture's name of 100,000 characters came to the terminal raw."""

    def fail() -> int:
        raise EdgeSpecError("x" * 100_000 + HOSTILE + "\nedgespec: all is well")

    assert reporting(fail) == 1
    err = capsys.readouterr().err
    assert len(err) < 2100 and err.count("\n") == 1 and harmless(err)


@posix
def test_file_names_of_a_hub_are_not_obeyed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with LocalHub() as local:
        content = model_bytes(tmp_path)
        local.add("acme/Big-GGUF", {f"{HOSTILE}-Q4_K_M.gguf": content, "Big-Q8_0.gguf": content})
        monkeypatch.setenv("HF_ENDPOINT", local.endpoint)
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
        assert cli.main(["pull", "acme/Big-GGUF", "--target-only", "--check"]) == 0
        assert cli.main(["pull", "acme/Big-GGUF:\x1b[2J"]) != 0
    out, err = capsys.readouterr()
    assert "Big-Q8_0.gguf" in err and harmless(out) and harmless(err)


def test_the_name_in_a_model_is_not_obeyed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    metadata = {"general.name": HOSTILE * 1000 + "\nfake line", "general.license": HOSTILE}
    model = tiny_gguf.write_llama(tmp_path / "m.gguf", d=32, layers=1, metadata=metadata)
    assert cli.main(["import", str(model), "--target-only", "--name", "odd"]) == 0
    assert cli.main(["show", "odd"]) == 0
    out, err = capsys.readouterr()
    assert harmless(out) and harmless(err) and not any(len(line) > 1000 for line in out.splitlines())
