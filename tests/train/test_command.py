"""`edgespec distill` refuses the impossible, before torch or a model is loaded, in one sentence each."""

from __future__ import annotations

import importlib.util
import time
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from edgespec.commands.cli import run_command
from edgespec.errors import DoesNotFitError, EdgeSpecError, ModelFileError, SettingError
from edgespec.measure.figures import Ratio
from edgespec.pairs.store import open_store
from edgespec_models import tiny
from edgespec_models.gguf.header import read_file
from edgespec_models.shelf.store import InstalledModel, InstalledPair
from edgespec_train.current_pair import CurrentPair, current_pair, install
from edgespec_train.kept_texts import KeptText
from edgespec_train.prompts import OWN_AGAIN, TrainingPrompts, is_held_out
from edgespec_train.session import Session, choose_kind, choose_width, claim
from edgespec_train.trial import Trial

NOTHING: Any = None


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGESPEC_DATA_DIR", str(tmp_path / "data"))


def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else find(name))


def test_a_target_that_is_not_there_is_reported_before_torch_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever mistyped a name was sent to install two gigabytes first."""
    without_torch(monkeypatch)
    for name in ("./no-such.gguf", "no-such-pair"):
        with pytest.raises(EdgeSpecError, match="no-such") as refused:
            run_command(["distill", name])
        assert "torch" not in str(refused.value)


def test_without_torch_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    without_torch(monkeypatch)
    with pytest.raises(SettingError, match=r"torch, which is not installed: .*folder, .*'\.\[train\]'"):
        run_command(["distill", "embedded"])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "name the model"),
        (["embedded", "--minutes", "-1"], "--minutes is -1"),
        (["embedded", "--minutes", "nan"], "--minutes is nan"),
        (["embedded", "--disk", "0"], "--disk is 0"),
        (["embedded", "--threads", "0"], "number of threads is 0"),
        (["embedded", "--threads", "100000"], "number of threads is 100000"),
    ],
)
def test_nonsense_is_refused(words: list[str], sentence: str) -> None:
    with pytest.raises(SettingError, match=sentence):
        run_command(["distill", *words])


def test_a_target_is_an_installed_pair_or_a_file(tmp_path: Path) -> None:
    assert current_pair("embedded") == CurrentPair(tiny.target_path(), tiny.draft_path(), None)
    with pytest.raises(ModelFileError, match=r"there is no file .*gone\.gguf"):
        current_pair(str(tmp_path / "gone.gguf"))
    with pytest.raises(SettingError, match="no pair 'nothing' is installed"):
        current_pair("nothing")
    assert current_pair(str(tiny.target_path())) == CurrentPair(tiny.target_path(), None, None)


def test_a_new_draft_takes_the_place_of_the_old_one_and_of_no_other(tmp_path: Path) -> None:
    """The pair stays the one it was; the file gets a name that the next try does not write."""
    target = tmp_path / "big.gguf"
    target.write_bytes(b"weights")
    model = InstalledModel((str(target),), 7)
    old = InstalledModel((str(tmp_path / "old.gguf"),), 3)
    (tmp_path / "old.gguf").write_bytes(b"old")
    open_store().add(InstalledPair("mine", model, old, "imported", time.time()))
    found = current_pair(str(target))
    assert found.pair and found.draft == tmp_path / "old.gguf"
    new = tmp_path / "new-eagle3.gguf"
    new.write_bytes(b"head")
    assert install(found, new, str(target)) == "mine"
    pair = open_store().get("mine")
    assert pair.target == model and pair.draft and pair.draft.path == tmp_path / "eagle3.gguf"
    assert not new.exists() and (tmp_path / "old.gguf").exists()
    assert "in place of old.gguf" in pair.note
    assert current_pair("mine").draft == tmp_path / "eagle3.gguf"


def test_a_file_that_was_no_pair_becomes_one(tmp_path: Path) -> None:
    target, new = tmp_path / "Big Model.Q4.gguf", tmp_path / "new-draft.gguf"
    target.write_bytes(b"weights")
    new.write_bytes(b"draft")
    name = install(current_pair(str(target)), new, str(target))
    assert name == "big-model.q4"
    assert open_store().default() == name and current_pair(name).draft == tmp_path / "draft.gguf"


def test_what_memory_does_not_hold_is_refused_with_both_figures() -> None:
    header = read_file(tiny.target_path())
    assert choose_width([header], 10 << 20, "eagle3", 704, 60, 64 << 30) == 96
    assert choose_width([header], 10 << 20, "eagle3", 704, 1, 64 << 30) == 4
    with pytest.raises(DoesNotFitError, match=r"takes about .* of memory, and .* are free"):
        choose_width([header], 10 << 20, "eagle3", 704, 60, 1 << 29)


def test_what_is_trained_is_chosen_or_asked_for() -> None:
    draft = Path("d.gguf")
    assert choose_kind(None, reads_layers=True, begin_with=None) == "eagle3"
    assert choose_kind(None, reads_layers=False, begin_with=None) == "draft"
    assert choose_kind(None, reads_layers=True, begin_with=draft) == "draft"
    assert choose_kind("medusa", reads_layers=False, begin_with=None) == "medusa"
    with pytest.raises(SettingError, match="--kind eagle3: llama.cpp does not show .* --kind medusa"):
        choose_kind("eagle3", reads_layers=False, begin_with=None)
    with pytest.raises(SettingError, match="--from d.gguf: it is a draft, so leave --kind medusa out"):
        choose_kind("medusa", reads_layers=True, begin_with=draft)


def test_a_folder_belongs_to_one_target(tmp_path: Path) -> None:
    """That of another one was learned on, and torch told of shapes that do not match."""
    one, other = (Session(name, tmp_path, NOTHING, NOTHING) for name in ("one-1234", "other-5678"))
    claim(one)
    claim(one)
    with pytest.raises(SettingError, match=r"holds output of one-1234, but the target is other-5678"):
        claim(other)


class Speaker:
    """Cuts text into characters."""

    def tokenise(self, text: str, *, special: bool = True, bos: bool = True) -> list[int]:
        return [ord(char) % 4000 + 1 for char in text]


def test_the_users_own_prompts_are_asked_again(tmp_path: Path) -> None:
    """A few texts of the user's were read once, and the rest of the time went into questions of ours."""
    own = [KeptText((n, n + 1), (7, 8), 0.0) for n in range(1, 40)]
    asked = TrainingPrompts(None, "", "", (), tuple(own))
    mine = {text.prompt for text in own if not is_held_out(text)}
    prompts = list(islice(asked.training(Speaker(), 0, frozenset()), len(mine) + 8 * len(mine)))  # type: ignore[arg-type]
    assert {tuple(one.tokens) for one in prompts[: len(mine)]} == mine and all(
        one.answer for one in prompts[: len(mine)]
    )
    anew = [one for one in prompts[len(mine) :] if tuple(one.tokens) in mine]
    assert len(anew) == OWN_AGAIN * len(mine) and not any(one.answer for one in anew)
    assert {one.temperature for one in anew} > {0.0, 1.0}
    others = [one for one in prompts[len(mine) :] if len(one.tokens) > 2]
    assert len(others) >= len(anew) // 3, "and other questions between them"
    assert not {tuple(one.tokens) for one in prompts} & {text.prompt for text in own if is_held_out(text)}


@pytest.mark.parametrize(
    ("plain", "today", "faster"),
    [((1.2, 1.1), (1.1, 1.02), True), ((1.2, 1.1), (1.1, 0.99), False), ((0.98, 0.95), (1.04, 1.01), False)],
)
def test_a_draft_is_faster_than_what_there_is_and_than_none(
    plain: tuple[float, float], today: tuple[float, float], faster: bool
) -> None:
    """One had 1.04 times the speed of guesses of text alone, 0.98 of plain decoding, and was installed."""
    over_plain, over_today = (Ratio(value, low, 2 * value - low, 14) for value, low in (plain, today))
    assert Trial({}, {}, 14, 90.0, over_plain, over_today).faster == faster


def test_passages_to_ask_about_are_prose() -> None:
    from edgespec_train import questions

    passages = questions.passages()
    assert len(passages) > 200
    assert all(200 <= len(text) <= 1500 and "\n" not in text for text in passages)
