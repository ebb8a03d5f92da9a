"""What a look at a pair evaluates, to the token, and what it takes of its time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from edgespec.core.pace.cost_table import (
    CostTable,
)
from edgespec.core.pace.costs import Costs, look
from edgespec.core.pace.tuning import TUNING


def table_of() -> CostTable:
    return CostTable({1: 1.0, 4: 2.0, 8: 4.0}, slope=0.0)


def test_plain_steps_of_a_light_target_are_known_to_be_timed() -> None:
    for one, timed in ((TUNING.light_s / 2, True), (TUNING.light_s * 2, False)):
        costs = Costs(CostTable({1: one}, slope=0.0), CostTable({1: one}))
        for _ in range(3):
            assert costs.timed == (timed and costs.settled)
            costs.note_size(1)
            costs.note_plain(0, one)
        assert costs.timed == timed


class Script:
    """Evaluates in the seconds of a table, and notes who was asked for how many tokens."""

    def __init__(self, target: CostTable, draft: CostTable | None = None) -> None:
        self.target, self.draft = target, draft
        self.calls: list[str] = []
        self.seconds = 0.0

    def _evaluate(self, who: str, table: CostTable) -> Callable[[int], float]:
        def evaluate(n: int) -> float:
            self.calls.append(f"{who}{n}")
            self.seconds += table.seconds(n)
            return table.seconds(n)

        return evaluate

    def look(
        self,
        costs: Costs,
        sizes: Sequence[int],
        read: Sequence[int] = (),
        budget: float = 99.0,
        n_ctx: int = 0,
    ) -> str:
        """Returns who was asked for how many tokens, and checks that the seconds are counted."""
        step = self._evaluate("d", self.draft) if self.draft else None
        verify = self._evaluate("t", self.target)
        left = look(costs, verify, step, sizes=sizes, read=read, n_ctx=n_ctx, budget=budget)
        assert budget - left == pytest.approx(self.seconds)
        return " ".join(self.calls)


def heavy() -> Costs:
    return Costs(table_of(), CostTable({1: 0.25}, slope=0.0))


def test_each_size_is_timed_between_single_tokens_and_behind_the_work_of_the_draft() -> None:
    assert Script(table_of()).look(heavy(), (4, 2)) == "t1 t4 t1 t2 t1"
    both = Script(table_of(), CostTable({1: 0.25}, slope=0.0))
    found = both.look(heavy(), (4, 2, 8), read=(16,))
    assert found == "t1 d1 d1 t4 t1 d1 d1 d16 t2 t1 d1 d1 t8 t1"


def test_where_a_new_size_is_dearer_at_first_single_tokens_are_timed_behind_some() -> None:
    costs = heavy()
    costs.target.settling, costs.draft.settling = 2, 3
    both = Script(table_of(), CostTable({1: 0.25}, slope=0.0))
    found = both.look(costs, (4, 2), read=(16,))
    assert found == "t1 t1 t1 d1 d1 t4 t1 t1 t1 d1 d1 d16 d1 d1 d1 t2 t1 t1 t1"


def test_a_light_target_pays_for_both_changes_of_a_size() -> None:
    one = TUNING.light_s / 2
    points = {1: one, 4: 2 * one}
    costs = Costs(CostTable(dict(points), slope=0.0), CostTable({1: 1.0}))
    script = Script(CostTable(points, slope=0.0))
    assert script.look(costs, (4,)) == "t1 t1 t4 t1 t1 t1"
    assert costs.target.seconds(4) == pytest.approx(2 * one), "it costs nothing here"


def test_what_has_no_time_is_left_out_and_what_has_is_timed() -> None:
    """By hand: four tokens in two, behind a single one, and a first one before both."""
    for budget, found in ((2.9, ""), (3.1, "t1 t4 t1"), (1.0, "")):
        assert Script(table_of()).look(heavy(), (4,), budget=budget) == found
    assert Script(table_of()).look(heavy(), (8, 4), budget=4.5) == "t1 t4 t1", "the next may be smaller"
    both = Script(table_of(), CostTable({1: 0.25}, slope=0.0))
    assert both.look(heavy(), (4,), budget=3.4) == "", "two guesses take time, too"
    behind = heavy()
    behind.target.slope = 0.1
    assert Script(table_of()).look(behind, (4,), budget=3.3, n_ctx=1000) == "", "and so does context"


def test_a_size_thought_dearer_than_smaller_ones_in_turn_is_timed_all_the_same() -> None:
    """Eight in 100: no more than twice four in two can be."""
    costs = Costs(CostTable({1: 1.0, 4: 2.0, 7: 90.0, 8: 100.0}, slope=0.0), CostTable({1: 1.0}))
    for budget, found in ((4.9, ""), (5.1, "t1 t8 t1")):
        assert Script(table_of()).look(costs, (8,), budget=budget) == found
    assert Script(table_of()).look(costs, (8,), budget=5.1) == "t1 t8 t1", "one token tells"
