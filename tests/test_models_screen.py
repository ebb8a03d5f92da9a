"""Choosing and pulling a model from inside the chat, against a hub on this machine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
from fake_endpoint import FakeEndpoint
from hub_models import model_bytes
from local_hub import Fault, LocalHub
from textual.widgets import Input, OptionList, ProgressBar
from tui_driver import Driven, driven

from edgespec.errors import EndpointError, SettingError
from edgespec.memory.recommended import Recommended
from edgespec_models import tiny
from edgespec_models.hub.hub import Hub
from edgespec_models.hub.model_pull import ModelPull
from edgespec_models.shelf.catalogue import catalogue
from edgespec_models.shelf.store import InstalledModel, InstalledPair, Store
from edgespec_tui.app import ChatApp
from edgespec_tui.screens.model_shelf import Shelf, fit_of

GB = 10**9


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalHub]:
    with LocalHub() as hub:
        hub.add("acme/Big-9B-GGUF", {"Big-9B-Q4_K_M.gguf": model_bytes(tmp_path, d=256, layers=3)})
        hub.add("acme/Big-1B-GGUF", {"Big-1B-Q8_0.gguf": model_bytes(tmp_path, seed=1)})
        yield hub


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "data")


@pytest.fixture
def room(local: LocalHub, store: Store, tmp_path: Path) -> Shelf:
    """A shelf on a machine with 16 GB, whose hub is on this machine."""

    def hub() -> Hub:
        return Hub(endpoint=local.endpoint, token=False, cache=tmp_path / "hub", offline=False)

    return Shelf(store, hub=hub, memory=16 * GB)


def installed(store: Store, tmp_path: Path, name: str = "mine", *, there: bool = True) -> InstalledPair:
    files = [tmp_path / f"{name}-{kind}.gguf" for kind in ("big", "small")]
    for file in files:
        if there:
            file.write_bytes(b"x" * 1000)
    models = [InstalledModel((str(file),), 1000) for file in files]
    pair = InstalledPair(name, models[0], models[1], "imported", 1.0)
    store.add(pair)
    return pair


def ended(pull: ModelPull, seconds: float = 20) -> ModelPull:
    end = time.monotonic() + seconds
    while not pull.over:
        assert time.monotonic() < end, (pull.stage, pull.sentence)
        time.sleep(0.02)
    return pull


def reached(pull: ModelPull, holds: Callable[[ModelPull], object], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not holds(pull):
        assert time.monotonic() < end and not pull.over, (pull.stage, pull.sentence)
        time.sleep(0.01)


# ---- what is on the shelf ---------------------------------------------------------------------------------


def test_installed_pairs_come_first_then_the_one_that_ships_then_what_fits_of_the_catalogue(
    store: Store, tmp_path: Path
) -> None:
    installed(store, tmp_path)
    store.note_speed("mine", 30.0, 20.0)
    pairs = Shelf(store, memory=8 * GB).pairs()
    assert [pair.kind for pair in pairs[:3]] == ["installed", "embedded", "catalogue"]
    assert (pairs[0].name, pairs[0].gain, pairs[0].size) == ("mine", "1.50x here", 2000)
    assert pairs[1].target == tiny.target_path() and pairs[1].draft == tiny.draft_path()
    fits = [pair.fit for pair in pairs[2:]]
    assert fits == sorted(fits, key=["fits", "tight", "too large"].index) and len(set(fits)) > 1
    assert any(pair.gain.endswith("x elsewhere") for pair in pairs[2:])


def test_a_pair_of_the_catalogue_that_is_installed_is_shown_once(store: Store, tmp_path: Path) -> None:
    installed(store, tmp_path, "qwen3-4b")
    assert [pair.kind for pair in Shelf(store, memory=8 * GB).pairs() if pair.name == "qwen3-4b"] == [
        "installed"
    ]


def test_files_that_are_gone_are_reported(store: Store, tmp_path: Path) -> None:
    installed(store, tmp_path, there=False)
    pair = Shelf(store, memory=8 * GB).pairs()[0]
    assert pair.missing and "mine-big.gguf is gone" in pair.detail[-1]


@pytest.mark.parametrize(
    "size, fit", [(1 * GB, "fits"), (4.8 * GB, "fits"), (5 * GB, "tight"), (7 * GB, "too large")]
)
def test_fit_is_judged_by_the_memory_of_the_machine(size: float, fit: str) -> None:
    assert fit_of(int(size), 8 * GB) == fit


def test_words_are_sought_in_all_that_is_known_of_a_pair(store: Store) -> None:
    pairs = Shelf(store, memory=8 * GB).pairs()
    assert {pair.name for pair in pairs if pair.holds("fim coder-7b")} == {"qwen2.5-coder-7b-fim"}
    assert all(pair.holds("") and not pair.holds("nonsense") for pair in pairs)


def test_a_store_that_is_damaged_is_reported(store: Store) -> None:
    store.folder.mkdir()
    store.path.write_text("{")
    with pytest.raises(SettingError, match="is damaged"):
        Shelf(store).pairs()


# ---- pulling ----------------------------------------------------------------------------------------------


def test_a_draft_is_chosen_among_those_that_fit_and_the_pair_is_installed(room: Shelf, store: Store) -> None:
    pull = room.begin_pull("acme/Big-9B-GGUF")
    reached(pull, lambda pull: pull.stage == "choosing")
    assert [draft.candidate.repo for draft in pull.choices] == ["acme/Big-1B-GGUF"]
    with pytest.raises(SettingError, match="acme/Big-9B-GGUF is being pulled"):
        room.begin_pull("qwen3-4b")
    pull.choose(pull.choices[0])
    assert ended(pull).sentence == "big-9b is installed."
    (pair,) = store.pairs()
    assert pair.draft and pair.draft.repo == "acme/Big-1B-GGUF"


@pytest.mark.slow
def test_a_pull_that_is_stopped_can_be_begun_again(room: Shelf, local: LocalHub, store: Store) -> None:
    local.faults.append(Fault("store", "Big-9B", pause_s=0.02))
    pull = room.begin_pull("acme/Big-9B-GGUF")
    reached(pull, lambda pull: pull.stage == "choosing")
    pull.choose(None)
    reached(pull, lambda pull: pull.progress and pull.progress.done > 3_000_000)
    pull.cancel()
    assert ended(pull).stage == "cancelled" and "Pull it again" in pull.sentence
    assert store.pairs() == []
    local.faults.clear()
    local.served.clear()
    again = room.begin_pull("acme/Big-9B-GGUF")
    reached(again, lambda pull: pull.stage == "choosing")
    again.choose(None)
    assert ended(again).stage == "done"


@pytest.mark.parametrize(
    "what, expected",
    [("acme/None-GGUF", "None-GGUF"), ("nonsense", "no pair 'nonsense'"), ("a/b/c", "a/b/c")],
)
def test_what_cannot_be_pulled_is_reported_in_a_sentence(room: Shelf, what: str, expected: str) -> None:
    pull = ended(room.begin_pull(what))
    assert pull.stage == "failed" and expected in pull.sentence


def test_stopping_while_a_draft_is_chosen_ends_it(room: Shelf) -> None:
    pull = room.begin_pull("acme/Big-9B-GGUF")
    reached(pull, lambda pull: pull.stage == "choosing")
    room.close()
    assert ended(pull).stage == "cancelled"


# ---- the screen -------------------------------------------------------------------------------------------


def on_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        asyncio.run(test(*arguments, **named))

    return run


async def listed(it: Driven) -> OptionList:
    """Opens the list of models."""
    await it.pilot.press("ctrl+l")
    await it.until(lambda: it.app.screen.query("#models-list"), "the list")
    options = it.app.screen.query_one(OptionList)
    await it.until(lambda: options.option_count > 3, "pairs")
    await it.pilot.pause()
    return options


@on_a_loop
async def test_a_chosen_pair_answers_from_then_on_and_the_conversation_stays(
    room: Shelf, store: Store, tmp_path: Path
) -> None:
    pair = installed(store, tmp_path)
    endpoint = FakeEndpoint()
    async with driven(ChatApp(endpoint, shelf=room)) as it:
        await it.ask("hello")
        await listed(it)
        assert "mine" in it.text() and "embedded" in it.text() and "target mine-big.gguf" in it.text()
        await it.pilot.press("enter")
        await it.until(lambda: endpoint.used == [(pair.target.path, pair.draft and pair.draft.path)])
        await it.notified("mine answers from now on.")
        assert it.texts()[0] == "hello" and "mine-big" in it.text().splitlines()[0]
        assert store.get("mine").last_used


def best_here() -> Recommended:
    entry = next(one for one in catalogue() if one.name == "qwen3-4b")
    return Recommended(entry, 1.5, "expected to gain")


@on_a_loop
async def test_the_best_pair_for_this_machine_comes_first_and_enter_pulls_nothing_unseen(
    store: Store, tmp_path: Path
) -> None:
    """The list had "fits" in every row and an empty column "gain", and nothing said what to take."""
    installed(store, tmp_path)
    shelf = Shelf(store, memory=1000 * GB, recommended=best_here)
    assert [pair.name for pair in shelf.pairs()[:3]] == ["qwen3-4b", "mine", "embedded"]
    gains = [pair.gain_first for pair in shelf.pairs()[3:]]
    assert gains == sorted(gains)
    endpoint = FakeEndpoint()
    async with driven(ChatApp(endpoint, shelf=shelf)) as it:
        options = await listed(it)
        first = next(line for line in it.text().splitlines() if "Best for this machine" in line)
        assert "size" in first and "  gain" in first and "memory" not in first, "everything fits"
        assert it.text().index("qwen3-4b") < it.text().index("Installed") < it.text().index("embedded")
        assert options.highlighted_option and options.highlighted_option.id == "mine"
        it.app.screen.query_one(Input).value = "embedded"
        await it.until(lambda: "  gain" not in it.text(), "a column without a value goes")
    installed(store, tmp_path, "qwen3-4b")
    assert [(pair.name, pair.kind) for pair in shelf.pairs()[:2]] == [
        ("qwen3-4b", "installed"),
        ("mine", "installed"),
    ]
    async with driven(ChatApp(endpoint, shelf=shelf)) as it:
        await listed(it)
        row = next(line for line in it.text().splitlines() if "qwen3-4b " in line)
        assert row.rstrip("│▏ ").endswith("best for this machine")


@on_a_loop
async def test_a_pair_that_goes_while_it_is_chosen_closes_no_engine(
    room: Shelf, store: Store, tmp_path: Path
) -> None:
    """The engine that worked was closed first, and then there was none."""
    pair, endpoint = installed(store, tmp_path), FakeEndpoint()
    async with driven(ChatApp(endpoint, shelf=room)) as it:
        await listed(it)
        pair.target.path.unlink()
        await it.pilot.press("enter")
        await it.notified("mine-big.gguf is gone: mine cannot be used")
        assert not endpoint.used and it.app.context.engine.state == "ready"


@on_a_loop
async def test_a_pair_that_cannot_be_loaded_is_reported_and_can_be_tried_again(room: Shelf) -> None:
    endpoint = FakeEndpoint()
    async with driven(ChatApp(endpoint, shelf=room)) as it:
        endpoint.start_error = EndpointError("it takes 9 GiB, and 3 GiB can be had")
        await listed(it)
        await it.pilot.press("enter")
        await it.until(lambda: "it takes 9 GiB" in it.text() and "F9" in it.text())
        await it.pilot.press("f9")
        await it.until(lambda: it.app.context.engine.state == "ready")


@on_a_loop
async def test_a_model_is_pulled_from_inside_the_chat_and_used(
    room: Shelf, local: LocalHub, store: Store
) -> None:
    local.faults.append(Fault("store", "Big-9B", pause_s=0.01))
    endpoint = FakeEndpoint()
    async with driven(ChatApp(endpoint, shelf=room), size=(80, 24)) as it:
        options = await listed(it)
        await it.pilot.press(*"acme/Big-9B-GGUF", "enter")
        await it.until(lambda: "no draft: guesses come" in it.text(), "the choice of a draft")
        await it.pilot.press("enter")
        await it.until(lambda: it.app.screen.query_one(ProgressBar).display, "a bar")
        await it.pilot.press("f8")
        await it.until(lambda: "are kept" in it.text(), "that it was stopped")
        local.faults.clear()
        it.app.screen.query_one("#models-search").focus()
        await it.pilot.press("enter")
        await it.until(lambda: "no draft: guesses come" in it.text())
        await it.pilot.press("down", "enter")
        await it.until(lambda: "Press Enter to resume" in it.text(), "that it is there")
        assert store.pairs()[0].draft is None
        await it.until(lambda: options.has_focus)
        await it.pilot.press("enter")
        await it.until(lambda: endpoint.used, "the pulled pair in use")
        assert endpoint.used[0][0].name == "Big-9B-Q4_K_M.gguf"


@pytest.mark.slow
@on_a_loop
async def test_a_pull_goes_on_while_one_chats_and_tells_its_end(room: Shelf, local: LocalHub) -> None:
    local.faults.append(Fault("store", "Big-9B", pause_s=0.02))
    async with driven(ChatApp(FakeEndpoint(), shelf=room)) as it:
        await listed(it)
        await it.pilot.press(*"acme/Big-9B-GGUF", "enter")
        await it.until(lambda: "no draft: guesses come" in it.text())
        await it.pilot.press("down", "enter")
        await it.pilot.press("escape")
        await it.ask("meanwhile")
        assert len(it.texts()) == 2
        await it.notified("big-9b is installed.")


@on_a_loop
async def test_words_that_find_nothing_and_a_second_pull_are_reported(room: Shelf) -> None:
    async with driven(ChatApp(FakeEndpoint(), shelf=room), size=(200, 50)) as it:
        options = await listed(it)
        await it.pilot.press(*"zzz")
        await it.until(lambda: "No pair matches" in it.text())
        assert options.option_count == 0
        await it.pilot.press("f8")
        await it.until(lambda: "Nothing is being pulled." in it.text())
        await it.pilot.press("escape")
        await it.until(lambda: it.app.screen is it.chat)
