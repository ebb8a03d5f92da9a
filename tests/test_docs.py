"""What the pages show runs, and their links lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import edgespec
from edgespec.core.drafters.free import free_guessers
from edgespec.core.values import DRAFTERS, FREE
from edgespec.sampling.settings import NUMBERS

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


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


@pytest.mark.parametrize("page", ["serve.md", "python.md", "options.md"])
def test_every_drafter_can_be_asked_for_and_is_on_the_pages(page: str) -> None:
    """Recycling competed and could not be named; the pages had four of the others."""
    assert tuple(guesser.name for guesser in free_guessers(8)) == FREE
    lines = (ROOT / "docs" / page).read_text(encoding="utf-8").splitlines()
    line = next(line for line in lines if "drafter" in line and "auto" in line)
    assert not [name for name in DRAFTERS if not re.search(rf"\b{name}\b", line)]
    edgespec.Request(drafter="recycling")


def test_every_sampling_setting_is_on_the_page_of_options_as_it_is() -> None:
    page = (ROOT / "docs" / "options.md").read_text(encoding="utf-8").splitlines()
    for name, number in NUMBERS.items():
        assert f"| `{name}` | {number.help} | {number.allowed} | {number.default:g} |" in page


def python_of(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)


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
