"""What every test uses: folders of its own, the embedded pair, and the test data if available."""

from __future__ import annotations

import gc
import os
import shutil
import stat
import sys
import zlib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgespec.system import config
from edgespec.system.json_child import JsonChild

ROOT = Path(__file__).resolve().parent.parent
USERS_FOLDERS = {
    "HOME": "",
    "USERPROFILE": "",
    "XDG_CACHE_HOME": ".cache",
    "XDG_CONFIG_HOME": ".config",
    "XDG_DATA_HOME": ".local/share",
    "XDG_STATE_HOME": ".local/state",
    "LOCALAPPDATA": "AppData/Local",
    "APPDATA": "AppData/Roaming",
}
SLOWEST_S = 3600  # for a test that is marked as slow
MEMORY = Path("/dev/shm")  # of Linux: where folders are made and removed without a disk
TESTS_A_LOOK = 1500
KNOWN = "known"  # folder of the session's home: the caches with which each test's home begins

os.environ["GGML_NO_BACKTRACE"] = "1"  # a fault of llama.cpp's is to end its process, not to start a debugger


def pytest_configure() -> None:
    """Tests write some thousand folders: into memory, where there is plenty, and programs may lie there."""
    if MEMORY.is_dir() and os.access(MEMORY, os.W_OK):
        has = os.statvfs(MEMORY)
        if has.f_bavail * has.f_frsize > 4 << 30 and not has.f_flag & os.ST_NOEXEC:
            os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """A part of the tests waits for clocks and processes: one worker more than there are cores, at most 4."""
    return min((os.cpu_count() or 1) + 1, 4)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks as slow what a sample leaves out: it is spread over all parameters, and the same each time."""
    sampled = defaultdict(list)
    for item in items:
        if (mark := item.get_closest_marker("sample")) and not item.get_closest_marker("slow"):
            sampled[item.nodeid.partition("[")[0], mark.args[0]].append(item)
    for (_, n), of_test in sampled.items():
        for item in sorted(of_test, key=lambda item: zlib.crc32(item.name.encode()))[n:]:
            item.add_marker(pytest.mark.slow)
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOWEST_S))


def pytest_collection_finish() -> None:
    """What was imported stays: to look through it again for garbage costs seconds."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(left: list[int] = [TESTS_A_LOOK]) -> None:  # noqa: B006 (a count that lasts)
    """A chat freezes what is old, and what it leaves is looked through now and then."""
    left[0] -= 1
    if not left[0]:
        left[0] = TESTS_A_LOOK
        gc.unfreeze()
        gc.collect()
        gc.freeze()


def move_home(patch: pytest.MonkeyPatch, home: Path) -> None:
    """Points at `home` whatever names a folder of the user's, and forgets the user's settings of EdgeSpec."""
    for name, below in USERS_FOLDERS.items():
        patch.setenv(name, str(home / below))
    for name in [
        name for name in os.environ if name.startswith("EDGESPEC_") and name != "EDGESPEC_TEST_DATA"
    ]:
        patch.delenv(name)
    for name in ("TMPDIR", "TEMP", "TMP"):  # what a program that is killed leaves behind goes with the home
        patch.setenv(name, str(home))
    patch.setenv("EDGESPEC_THREADS", "1")  # tiny models are not faster with more, and tests share the machine


@pytest.fixture(scope="session", autouse=True)
def session_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The home of fixtures that serve many tests."""
    home = tmp_path_factory.mktemp("session-home")
    with pytest.MonkeyPatch.context() as patch:
        move_home(patch, home)
        from edgespec.system.self_test import self_test

        self_test()  # what llama.cpp can do here is found once
        measure_embedded_pair()
        shutil.copytree(config.cache_folder(), home / KNOWN)
        yield home


def measure_embedded_pair() -> None:
    """Its first start takes a second longer than others, with and without the draft."""
    from edgespec.engine.pair import Pair
    from edgespec_models import tiny

    for draft in (tiny.draft_path(), None):
        with Pair(tiny.target_path(), draft) as pair:
            pair.costs()


@pytest.fixture(autouse=True)
def home(
    session_home: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A fresh home for each test: none sees or touches the user's folders, or another test's."""
    folder = tmp_path_factory.mktemp("home")
    move_home(monkeypatch, folder)
    shutil.copytree(session_home / KNOWN, config.cache_folder())
    if os.name == "posix":  # what attention of a model's shape costs is timed once for all tests
        shared, own = session_home / KNOWN / "attention", config.cache_folder() / "attention"
        shared.mkdir(exist_ok=True)  # on a busy machine nothing may have been found out yet
        shutil.rmtree(own, ignore_errors=True)
        own.symlink_to(shared)
    return folder


@pytest.fixture(scope="session")
def _oracle_child() -> Iterator[JsonChild]:
    with JsonChild("edgespec.llama.memory_child") as child:
        yield child


@pytest.fixture
def one_oracle(_oracle_child: JsonChild, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every question about memory goes to one child, where each command would start its own."""
    from edgespec.memory import at_load

    class Kept(at_load.MemoryOracle):
        def __init__(self) -> None:
            self._child, self._known = _oracle_child, {}

        def __exit__(self, *fault: object) -> None: ...

    monkeypatch.setattr(at_load, "MemoryOracle", Kept)


@pytest.fixture(scope="session")
def test_data() -> Path:
    """The test data that is not part of the project (in EDGESPEC_TEST_DATA); without it the test skips."""
    folder = Path(os.environ.get("EDGESPEC_TEST_DATA") or ROOT.parent / "shared" / "data")
    if not folder.is_dir():
        pytest.skip(f"no test data in {folder}: set EDGESPEC_TEST_DATA to the folder that has it")
    return folder


@pytest.fixture(scope="session")
def tiny_target() -> Path:
    """The target of the embedded pair."""
    from edgespec_models import tiny

    return Path(tiny.target_path())


@pytest.fixture(scope="session")
def tiny_draft() -> Path:
    """The draft of the embedded pair."""
    from edgespec_models import tiny

    return Path(tiny.draft_path())


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """The fake llama-server, as a program."""
    path = tmp_path / "llama-server"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} {ROOT / "tests" / "fake_llama_server.py"} "$@"\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path
