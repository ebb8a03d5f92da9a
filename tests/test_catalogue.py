"""The shipped catalogue is complete, says what was not verified, and finds pairs by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgespec_models.hub.choose_file import FOR_CACHES
from edgespec_models.shelf.catalogue import CatalogueEntry, CatalogueError, catalogue, find, read_catalogue
from edgespec_models.shelf.store import check_name


def test_every_class_and_use_has_a_pair() -> None:
    entries = catalogue()
    assert {entry.machine for entry in entries} == {"tiny", "laptop", "8 GB", "12-16 GB", "24 GB"}
    assert {entry.use for entry in entries} == {"chat", "code", "fim"}


@pytest.mark.parametrize("entry", catalogue(), ids=lambda entry: entry.name)
def test_an_entry_says_all_that_a_user_asks(entry: CatalogueEntry) -> None:
    assert check_name(entry.name) == entry.name
    for model in entry.models:
        assert model.repo.count("/") == 1 and model.file.endswith(".gguf")
        assert model.licence and model.size > 10_000_000
    assert entry.draft is None or entry.draft.size < entry.target.size
    assert entry.gain_from, "where the gain comes from, or that none is known"


def test_a_pair_fits_the_machine_it_is_listed_for() -> None:
    """8.63 GB were listed for 8 GB, and 16.2 for 12 to 16."""
    memory = {"tiny": 4e9, "laptop": 8e9, "8 GB": 8e9, "12-16 GB": 12e9, "24 GB": 24e9}
    for entry in catalogue():
        assert entry.size <= FOR_CACHES * memory[entry.machine], entry.name


def test_a_misspelt_name_is_reported_its_neighbours() -> None:
    assert find("QWEN3-4B").name == "qwen3-4b"
    with pytest.raises(CatalogueError, match="no pair 'qwen3-4': did you mean qwen3-4b"):
        find("qwen3-4")
    with pytest.raises(CatalogueError, match="`edgespec pull` lists them"):
        find("zzzzzz")


SOUND = """[[pair]]
name = "a"
class = "tiny"
use = "chat"
context = 1
gain = ""
gain_from = "none"
notes = []
[pair.target]
repo = "o/t"
file = "t.gguf"
revision = "main"
size_gb = 1.0
licence = "mit"
unverified = []
[pair.draft]
repo = "o/d"
file = "d.gguf"
revision = "main"
size_gb = 0.1
licence = "mit"
unverified = []
"""


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("class = ", "klass = "), "class"),
        (('"tiny"', '"huge"'), "class 'huge'"),
        (("context = 1", 'context = 1\nsped = "x"'), "unknown fields .'sped'."),
        (("unverified = []", 'unverified = ["colour"]'), "colour"),
        (("[[pair]]", "[pair"), "Expected|Cannot|Invalid"),
    ],
)
def test_a_wrong_catalogue_is_reported(tmp_path: Path, change: tuple[str, str], expected: str) -> None:
    path = tmp_path / "pairs.toml"
    path.write_text(SOUND)
    assert read_catalogue(path)[0].verified
    path.write_text(SOUND.replace(*change, 1))
    with pytest.raises(CatalogueError, match=expected):
        read_catalogue(path)
    path.write_text(SOUND + SOUND)
    with pytest.raises(CatalogueError, match="has 'a' twice"):
        read_catalogue(path)
