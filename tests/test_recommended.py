"""The pair that is recommended: it fits, it can gain, and what was estimated here decides."""

from __future__ import annotations

import io
from contextlib import redirect_stderr

import pytest

from edgespec.commands.cli import run_command
from edgespec.commands.run import hint
from edgespec.memory.recommended import most_gain, recommended, recommended_here
from edgespec.pairs.found import EASY, OVERHEAD
from edgespec.pairs.planned import PlannedSpeed, keep
from edgespec.pairs.store import open_store
from edgespec_models import tiny
from edgespec_models.shelf.catalogue import find
from edgespec_models.shelf.installed_pair import InstalledModel, InstalledPair

PLENTY = 500 * 10**9


@pytest.mark.parametrize("memory", [2e9, 4e9, 8e9, 16e9, 32e9, 64e9])
@pytest.mark.parametrize("cores", [1, 2, 8, 64])
def test_what_is_recommended_fits_and_can_gain(memory: float, cores: int) -> None:
    """A first session ended with a model that gains nowhere, and with no word of one that does."""
    found = recommended(int(memory), PLENTY, cores)
    if memory >= 4e9 and cores > 1:
        assert found
    if found:
        assert found.entry.draft and found.entry.use == "chat" and found.gain > 1.1
        assert found.entry.size + OVERHEAD <= EASY * memory
        assert found.entry.target.size <= cores * 1e9
        assert found.name in found.sentence and "GB" in found.sentence and "times as fast" in found.sentence


def test_it_has_to_fit_the_disk_unless_it_is_here() -> None:
    found = recommended(16 * 10**9, PLENTY, 4)
    assert found
    small = recommended(16 * 10**9, 10**9, 4)
    assert small is None
    again = recommended(16 * 10**9, 10**9, 4, here={found.name})
    assert again == found


def test_an_estimate_of_this_machine_decides() -> None:
    """Whatever others say of a pair: here it was planned."""
    usual = recommended(16 * 10**9, PLENTY, 4)
    assert usual and usual.name != "granite-4.0-micro"
    keep(usual.name, PlannedSpeed(9.0, 9.0, 0.6, True))
    keep("granite-4.0-micro", PlannedSpeed(10.0, 14.0, 0.6, True))
    found = recommended(16 * 10**9, PLENTY, 4)
    assert found and found.name == "granite-4.0-micro" and found.gain == pytest.approx(1.4)
    assert "planned here: 10.0 tok/s plain, 14.0" in found.expectation
    keep("granite-4.0-micro", PlannedSpeed(1.0, 1.4, 0.6, True))  # nobody waits for that
    assert recommended(16 * 10**9, PLENTY, 4) not in (found, usual)


def test_the_most_a_pair_can_gain_is_that_of_the_best_length() -> None:
    assert most_gain(0.5, 1.0) == 1.0, "plain decoding is among the choices"
    assert most_gain(0.6, 0.1) == pytest.approx(max((1 + 0.6 + 0.36) / 1.2, (1 + 0.6 + 0.36 + 0.216) / 1.3))
    known = find("llama-3.1-8b")
    assert known.acceptance and known.draft
    assert most_gain(known.acceptance, known.draft.size / known.target.size) > 1.5


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_run_without_guesses_ends_with_the_pair_that_gains() -> None:
    """It ended with "nothing was drafted", without why, and without what to do. In a pipe it is quiet."""
    for shown in (False, True):
        with redirect_stderr(Screen() if shown else io.StringIO()) as err:
            assert run_command(["run", "--target", str(tiny.target_path()), "-n", "2", "Why?"]) == 0
        printed = err.getvalue()
        hints = [line for line in printed.splitlines() if "edgespec demo" in line]
        assert len(hints) == shown
        if shown:
            best = recommended_here()
            assert "no draft" in hints[0] and (best is None or f"`edgespec pull {best.name}`" in hints[0])
    with redirect_stderr(Screen()) as err:
        assert run_command(["run", "--no-draft", "-n", "2", "Why?"]) == 0
    assert "edgespec demo" not in err.getvalue(), "nobody wanted guesses"


def test_the_hint_chooses_what_is_installed_and_does_not_recommend_what_runs() -> None:
    best = recommended_here()
    assert best
    assert f"`edgespec pull {best.name}` gets" in hint(None, has_draft=False)
    assert best.name not in hint(best.name, has_draft=True)
    files = InstalledModel((str(tiny.target_path()),), 1)
    open_store().add(InstalledPair(best.name, files, files, "imported", 1.0))
    assert f"`--pair {best.name}` chooses" in hint("other", has_draft=True)
