"""The models of other programs: the best of them is offered by one key, and nobody waits for the search."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import tiny_gguf
from fake_endpoint import FAKE, FakeEndpoint
from test_tui_chat import on_a_loop
from textual import events
from textual.widgets import Static
from tui_driver import driven

from edgespec.pairs.found import Found, best, best_found
from edgespec_models.shelf.catalogue import catalogue
from edgespec_models.shelf.store import InstalledModel, Store
from edgespec_tui.app import ChatApp
from edgespec_tui.screens.model_shelf import Shelf, offered

GB = 10**9
FAKE_EMBEDDED = replace(FAKE, embedded=True)


def model(name: str, gigabytes: float, draft: str = "", program: str = "LM Studio") -> Found:
    small = InstalledModel((f"/there/{draft}",), GB // 2) if draft else None
    target = InstalledModel((f"/there/{name}",), round(gigabytes * GB))
    return Found(program, f"pub/{name}", target, draft, small)


def written(path: Path, d: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return tiny_gguf.write_llama(path, d=d, layers=1, vocab=tiny_gguf.make_vocabulary(512))


# --- which one


def test_the_best_is_the_largest_pair_that_fits_and_else_the_largest_target() -> None:
    large, pair, small = model("70b.gguf", 40, "1b.gguf"), model("8b.gguf", 5, "1b.gguf"), model("9b.gguf", 6)
    assert best([small, pair, large], 16 * GB) is pair, "with a draft before a larger one without"
    assert best([small, large], 16 * GB) is small and best([large], 16 * GB) is best([], 16 * GB) is None


def test_an_offer_says_size_fit_and_what_is_expected() -> None:
    assert offered(model("8b-Q4_K_M.gguf", 5, "1b.gguf")) == (
        "8b-Q4_K_M.gguf of LM Studio with 1b.gguf as its draft: 5.50 GB, fits; F5 then measures what its "
        "draft brings"
    )
    assert "guesses come from the text" in offered(model("8b.gguf", 5))
    known = next(entry for entry in catalogue() if entry.gain)
    assert f"{known.gain}x elsewhere" in offered(model(known.target.file, 5, known.draft.file))


# --- the search


def test_a_child_finds_the_pairs_of_other_programs_and_damaged_files_are_passed_over(home: Path) -> None:
    folder = home / ".lmstudio/models/pub"
    assert best_found(16 * GB) is None, "nothing is there"
    big, small = written(folder / "big/big-Q8_0.gguf", 128), written(folder / "small/small-Q8_0.gguf", 32)
    (folder / "big/broken.gguf").write_text("no model")
    found = best_found(16 * GB)
    assert found and found.target.paths == (str(big),)
    assert found.draft and found.draft.paths == (str(small),) and found.program == "LM Studio"
    assert found.label == "pub/big/big-Q8_0.gguf" and best_found(GB // 2) is None


@pytest.mark.parametrize("child", ["edgespec.no_such_module", "this"])
def test_whatever_goes_wrong_in_the_search_nothing_was_found(child: str) -> None:
    assert best_found(16 * GB, child=child) is None


def test_a_search_that_takes_too_long_is_ended() -> None:
    assert best_found(16 * GB, longest_s=0.01) is None


# --- in the chat


@on_a_loop
async def test_a_found_pair_is_offered_and_one_key_takes_it(tmp_path: Path) -> None:
    big, small = written(tmp_path / "big-Q8_0.gguf", 128), written(tmp_path / "small-Q8_0.gguf", 32)
    sizes = [file.stat().st_size for file in (big, small)]
    found = Found(
        "LM Studio", "pub/big-Q8_0.gguf", InstalledModel((str(big),), sizes[0]), "small-Q8_0.gguf",
        InstalledModel((str(small),), sizes[1]),
    )  # fmt: skip
    may = threading.Event()

    def look(memory: int) -> Found:
        assert may.wait(20)
        return found

    store, endpoint = Store(tmp_path / "models"), FakeEndpoint(info=FAKE_EMBEDDED)
    async with driven(ChatApp(endpoint, shelf=Shelf(store, look=look), look_after_s=0)) as it:
        await it.pilot.press("alt+u")
        await it.notified("No model of another program")
        assert "Already here" not in it.text(), "the search goes on, and the screen is there"
        may.set()
        await it.until(lambda: "Already here: big-Q8_0.gguf of LM Studio with small-Q8_0.gguf" in it.text())
        it.app.post_message(events.Key("alt+u", "u"))  # as a terminal's driver has it
        await it.until(lambda: endpoint.used == [(big, small)], "the pair")
        assert [pair.name for pair in store.pairs()] == ["big-q8_0"] == [store.default()]
        assert not it.chat.query_one("#welcome-offer", Static).display and not it.chat.prompt.text


@on_a_loop
async def test_a_found_model_that_has_gone_closes_no_engine_and_is_no_default(tmp_path: Path) -> None:
    """Alt+U closed the engine that worked and made the lost file the default: the next chat did not start."""
    gone = InstalledModel((str(tmp_path / "gone-Q8_0.gguf"),), 1000)
    found = Found("LM Studio", "pub/gone-Q8_0.gguf", gone, "", None)
    store, endpoint = Store(tmp_path / "models"), FakeEndpoint(info=FAKE_EMBEDDED)
    async with driven(ChatApp(endpoint, shelf=Shelf(store, look=lambda memory: found), look_after_s=0)) as it:
        await it.until(lambda: "Already here: gone-Q8_0.gguf" in it.text())
        await it.pilot.press("alt+u")
        await it.notified("gone-Q8_0.gguf is gone since it was found here")
        assert not endpoint.used and store.default() is None and "Already here" not in it.text()
        assert it.app.context.engine.state == "ready"


@on_a_loop
async def test_who_asks_before_a_model_was_found_is_offered_it_as_well(tmp_path: Path) -> None:
    """The welcome alone named it, and gives place to the first question."""
    may, found = threading.Event(), model("8b-Q4_K_M.gguf", 5)

    def look(memory: int) -> Found | None:
        return found if may.wait(20) else None

    async with driven(
        ChatApp(FakeEndpoint(info=FAKE_EMBEDDED), shelf=Shelf(Store(tmp_path), look=look), look_after_s=0)
    ) as it:
        await it.ask("hello")
        may.set()
        await it.notified("Already here: 8b-Q4_K_M.gguf of LM Studio: 5.00 GB")
        await it.notified("Alt+U continues with it.")
        await it.pilot.press("ctrl+n")
        await it.until(lambda: "Already here: 8b-Q4_K_M.gguf" in it.text(), "the welcome of a new chat")


@pytest.mark.slow
@on_a_loop
async def test_who_has_chosen_a_model_is_offered_none(tmp_path: Path) -> None:
    looked: list[int] = []

    def look(memory: int) -> Found | None:
        looked.append(memory)
        return None

    async with driven(ChatApp(FakeEndpoint(), shelf=Shelf(Store(tmp_path), look=look), look_after_s=0)):
        pass
    async with driven(
        ChatApp(FakeEndpoint(info=FAKE_EMBEDDED), shelf=Shelf(Store(tmp_path), look=look), look_after_s=0)
    ) as it:
        await it.until(lambda: looked, "the search")
        await asyncio.sleep(0)
        assert "Already here" not in it.text()
    assert len(looked) == 1
