"""What the pages show runs, and their links lead somewhere."""

from __future__ import annotations

import functools
import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import edgespec
from edgespec.commands.cli import COMMANDS, parsed, parser_for
from edgespec.commands.serve.settings_file import flags_in
from edgespec.core.drafters.free import free_guessers
from edgespec.core.values import DRAFTERS, FREE
from edgespec.sampling.settings import NUMBERS, ORDER
from edgespec_models import tiny

ROOT = Path(__file__).resolve().parent.parent
TREE = ("edgespec", "tui", "models", "tests", ".make")
MAP = ROOT / "docs/map.md"  # `make map` writes it
DOCS = sorted({*(ROOT / "docs").glob("*.md")} - {MAP})
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    inside = [link for link in links if "://" not in link]
    missing = [link for link in inside if not (page.parent / link).exists()]
    assert not missing


def test_every_page_is_on_the_list_of_pages() -> None:
    listed = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    assert not [
        page.name
        for page in (ROOT / "docs").glob("*.md")
        if f"({page.name})" not in listed and page.name not in ("README.md", "map.md")
    ]


def test_every_drafter_can_be_asked_for_and_is_on_the_page_of_options() -> None:
    """Recycling competed and could not be named; the pages had four of the others."""
    assert tuple(guesser.name for guesser in free_guessers(8, bytes)) == FREE
    page = (ROOT / "docs" / "options.md").read_text(encoding="utf-8")
    assert r"`--drafter " + r"\|".join(DRAFTERS) + "`" in page
    edgespec.Request(drafter="recycling")


def test_every_sampling_setting_is_on_the_page_of_options_as_it_is() -> None:
    page = (ROOT / "docs" / "options.md").read_text(encoding="utf-8").splitlines()
    for name, number in NUMBERS.items():
        assert f"| `{name}` | {number.help} | {number.allowed} | {number.default:g} |" in page
    assert f"(`{';'.join(ORDER)}`)" in "\n".join(page)


def python_of(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.sample(1)
@pytest.mark.parametrize("code", [*python_of("README.md"), *python_of("docs/python.md")])
def test_the_python_of_the_pages_runs(code: str) -> None:
    for _ in range(3):  # sampled: one text in 200 ends before its first word
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        if done.stdout.strip():
            return
    pytest.fail("three texts without a word")


def test_pages_import_only_what_is_promised() -> None:
    code = "\n".join(code for page in PAGES for code in python_of(str(page.relative_to(ROOT))))
    imported = re.findall(r"^\s*(?:from|import) (edgespec[\w.]*)", code, re.MULTILINE)
    assert imported and set(imported) == {"edgespec"}
    assert set(re.findall(r"\bedgespec\.([A-Za-z_]+)", code)) <= set(edgespec.__all__)


# from an index, and not from a folder
UNOWNED = re.compile(r"\binstall\b[^\n`#]*[ '\"]edgespec(\[|==|['\"`\s]|$)")


def test_nothing_recommends_a_package_that_is_not_ours() -> None:
    """`edgespec[train]` was recommended, and no such name is registered: a stranger could have it."""
    assert UNOWNED.search("pip install 'edgespec[train]'") and UNOWNED.search("pipx install edgespec")
    assert not UNOWNED.search("install '.[train]'") and not UNOWNED.search("pip install ./edgespec")
    kinds = (
        "edgespec/**/*.py",
        "tui/**/*.py",
        "models/**/*.py",
        "docs/*.md",
        "*.md",
        ".make/*.py",
        "Makefile",
    )
    for path in (path for kind in kinds for path in ROOT.glob(kind)):
        assert not UNOWNED.search(path.read_text(encoding="utf-8")), path


# ---- commands, flags, files and settings that the pages name ----------------------------------------------

FLAG = re.compile(r"(?<![\w-])--[a-z][\w-]*")
# lines for other programs' shells, which say what they are
OTHERS = re.compile(r"\b(pip|pipx|uv|systemctl|journalctl)\b")
# of other programs, named alone; and of ours, where CONTRIBUTING says that they are gone
ALONE = {
    "--only-binary", "--no-binary", "--extra-index-url", "--no-cache-dir", "--no-cache", "--map-tokens",
    "--map-refresh", "--cache-prompts", "--spec-draft-sampling", "--picture", "--markdown", "--report",
    "--compare", "--peer",
}  # fmt: skip
GONE = {"CONTRIBUTING.md": {"trim"}}
MADE_FOR_READERS = {"a.py", "settings.toml", "serve.toml"}  # of an example, and of the reader's own machine


@functools.cache
def flags() -> dict[str, set[str]]:
    """Returns command -> its flags, and script of tests/benchmarks -> its own; "" has all of them."""
    found = {name: set(parser_for(name)[1]._option_string_actions) for name in COMMANDS}
    for script in (ROOT / "tests/benchmarks").glob("*.py"):
        found[script.name] = set(FLAG.findall(script.read_text(encoding="utf-8")))
    return found | {"": ALONE.union(*found.values())}


@functools.cache
def source() -> dict[Path, str]:
    """Returns the text of every file of Python."""
    files = (path for top in TREE for path in (ROOT / top).rglob("*.py"))
    return {path: path.read_text(encoding="utf-8") for path in files}


def code_of(page: Path) -> list[str]:
    """Returns the lines of a page's code, in blocks and in sentences."""
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"```\w*\n(.*?)```", text, re.DOTALL)
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    return [line for piece in [*blocks, *spans] for line in piece.replace("\\\n", " ").splitlines()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_and_flag_of_the_pages_exists(page: Path) -> None:
    """docs/scale.md described a command that had gone, and the README a flag."""
    wrong: list[tuple[str, str]] = []
    for line in code_of(page):
        if OTHERS.search(line):
            continue
        calls = list(re.finditer(r"(?:^|[\s(|;/])edgespec ([a-z]\w*)([^;|]*)", line.split(" #")[0]))
        for call in calls:
            if call[1] not in COMMANDS:
                wrong += [(call[1], line)] if call[1] not in GONE.get(page.name, ()) else []
            elif call[0] != "edgespec serve --upstream":  # "why there is no"
                wrong += [(flag, line) for flag in FLAG.findall(call[2]) if flag not in flags()[call[1]]]
        if not calls:
            script = re.search(r"\w+\.py\b", line)
            known = flags().get(script[0] if script else "", set())
            wrong += [(flag, line) for flag in FLAG.findall(line) if flag not in known]
    assert not wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_line_of_the_pages_is_understood(page: Path) -> None:
    """Its values too: each is parsed as it would be if somebody copied it."""
    blocks = re.findall(r"```sh\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    for line in lines:
        words = shlex.split(line, comments=True)
        if words[:1] == ["edgespec"]:
            ended = next((i for i, word in enumerate(words) if word in ("|", "&&", ">", "&")), None)
            assert parsed(words[1:ended]).command == words[1], line


@pytest.mark.parametrize(
    "page", [*PAGES, ROOT / "models/edgespec_train/README.md"], ids=lambda page: page.name
)
def test_every_file_of_the_pages_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    ours = {path.relative_to(ROOT).as_posix() for path in source()}
    ours |= {path.name for path in ROOT.glob(".make/*")}
    named = re.findall(r"(?<![\w/.<-])((?:[\w.-]+/)*[\w-]+\.(?:py|toml))\b", text)
    assert not [
        name
        for name in named
        if name not in MADE_FOR_READERS
        and not any(f"/{path}".endswith(f"/{name}") for path in ours)
        and not (ROOT / name).exists()
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_environment_variable_of_the_pages_is_read(page: Path) -> None:
    named = set(re.findall(r"\bEDGESPEC_[A-Z_]+", page.read_text(encoding="utf-8")))
    assert not [name for name in named if not any(name in text for text in source().values())]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_json_and_toml_of_the_pages_can_be_read(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for block in re.findall(r"```json\n(.*?)```", text, re.DOTALL):
        assert isinstance(json.loads(block), dict | list)
    for block in re.findall(r"```toml\n(.*?)```", text, re.DOTALL):
        assert tomllib.loads(block)


def test_the_settings_file_of_the_pages_is_understood(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "service.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    assert blocks
    for block in blocks:
        (tmp_path / "serve.toml").write_text(block, encoding="utf-8")
        assert flags_in(tmp_path / "serve.toml", parser_for("serve")[1], model=True)


RUNS = re.compile(r"edgespec (run|export|doctor|chat (-p|--list)) ?")  # to an end, with the embedded pair
# those with other machines, pictures and servers, and what test_export.py tests
CANNOT = re.compile(r"--(rpc|image|tools|endpoint)|qwen3-8b --to")


def runnable() -> list[str]:
    """Returns the command lines of the pages that can run here."""
    blocks = [
        block for page in PAGES for block in re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL)
    ]
    lines = {line.split(" #")[0].strip() for block in blocks for line in block.splitlines()}
    return sorted(line for line in lines if RUNS.match(f"{line} ") and not CANNOT.search(line))


@pytest.mark.sample(1)
@pytest.mark.parametrize("line", runnable())
def test_the_command_lines_of_the_pages_run(line: str, tmp_path: Path) -> None:
    """On the embedded pair, under the names that the page gives its files."""
    words = shlex.split(line)
    for word in words:
        if word.endswith(".gguf"):
            (tmp_path / word).symlink_to(tiny.draft_path() if "small" in word else tiny.target_path())
    (tmp_path / "person.json").write_text('{"type": "object", "properties": {"name": {"enum": ["Will"]}}}')
    (tmp_path / "answer.gbnf").write_text('root ::= "yes" | "no"')
    words = [sys.executable, "-m", "edgespec", *words[1:]]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
