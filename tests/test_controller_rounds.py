"""What a controller records of its rounds, and how they follow one another.

Figures follow by hand from the constants. Whole texts are in `test_controller.py`.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from pacing import MEMORY_BOUND, TOKENS, controller_of, costs_of, next_round, proven, round_of, wanted

from edgespec.core.pace.controller import Controller
from edgespec.core.pace.cost_table import SURPRISE
from edgespec.core.pace.record import QUIETER, Gain, Record, Watch
from edgespec.core.pace.tuning import TUNING
from edgespec.core.values import Ask

LIKELY = (0.9, 0.8, 0.7)
DEAR = {1: 1.0, 2: 3.0, 3: 3.2, 49: 20.0}  # no draft of one guess can pay, and the cheapest loses over 1
HOPELESS = {1: 1.0, 49: 49.0}  # none can pay


# --- what is recorded of a round


def test_a_plain_round_is_counted_in_single_tokens_of_the_moment() -> None:
    record = Record(since_plain=9, trying=1.0)
    controller = controller_of(costs_of({1: 2.0}, 0.1), record)
    assert controller.observe(round_of(1), 3.0) == 1.0
    assert (record.emitted, record.since_plain) == (1, 0) and record.all == Gain(1.0, 1.5)
    assert record.trying == pytest.approx(1 + TUNING.share)
    assert record == Record(emitted=1, all=Gain(1.0, 1.5), trying=record.trying)


def test_a_round_whose_time_is_not_counted_brings_its_tokens_alone() -> None:
    record = Record()
    controller = controller_of(costs_of({1: 1.0}, 0.1), record)
    controller.took(2, 1.5)
    assert controller.observe(round_of(3), 0.0) == 1.5
    assert record == Record(emitted=3, since_plain=3)


def test_what_may_be_spent_on_tries_is_refilled_up_to_what_is_saved_for() -> None:
    record = Record(trying=4.0, saving=4.0 + TUNING.share)
    controller = controller_of(costs_of({1: 1.0}, 0.1), record)
    controller.observe(round_of(4), 1.0)
    assert record.trying == record.saving


def test_a_round_of_the_model_is_charged_to_the_draft() -> None:
    record = proven(2.0, lost=1.0)
    record.since_plain = 3
    costs = costs_of(MEMORY_BOUND, 0.05)
    controller = controller_of(costs, record)
    assert controller.grants_step(wanted(LIKELY), 1)
    controller.drafted()
    expected = controller.observe(round_of(3), 2.5)
    assert expected == pytest.approx(2.0, abs=1e-6), "what such rounds gained so far"
    assert record.lost == pytest.approx(0.5) and record.since_plain == 6
    assert record.model == record.all == Gain(2e9 * TUNING.fade + 3, 1e9 * TUNING.fade + 2.5)
    assert record.trying == TUNING.start, "it was expected to pay"
    next_round(controller, costs)
    assert controller.observe(round_of(1), 1.0) == 1.0, "each round has its own expectation"
    assert record.since_plain == 0


def test_what_a_try_loses_is_taken_from_what_may_be_spent_on_tries() -> None:
    for accepted, seconds, left in ((0, 2.5, 1.5), (1, 2.5, 2.5), (4, 1.5, TUNING.start + 3.5), (0, 99, -3)):
        record = Record(saving=TUNING.start)
        controller = controller_of(costs_of(MEMORY_BOUND, 0.05), record)
        assert controller.grants_step(wanted((0.1,)), 1)
        controller.drafted()
        controller.observe(round_of(1 + accepted), float(seconds))
        assert record.trying == pytest.approx(max(left, -TUNING.start))
        assert record.model == Gain(1.0 + accepted, float(seconds))


def test_a_free_round_has_a_balance_of_its_own() -> None:
    record = Record(free_lost=0.5)
    controller = controller_of(costs_of({1: 1.0}, 0.1), record)
    controller.took(3, 1.4)
    assert controller.observe(round_of(2), 2.25) == 1.4
    assert record.free_lost == pytest.approx(0.75) and record.lost == 0 and record.model == Gain()
    controller.took(0, 9.9)
    assert controller.observe(round_of(40), 1.0) == 1.4, "none was taken"
    assert record.free_lost == -TUNING.credit


def test_reading_and_going_back_are_charged_to_the_draft() -> None:
    record = Record(model=Gain(4.0, 2.0))
    controller = controller_of(costs_of({1: 2.0}, 0.1), record)
    controller.read(1.0)
    assert record.lost == 0.5 and record.model == Gain(4.0, 2.0)
    controller.rewound(3.0)
    assert record.lost == 2.0
    assert record.model == Gain(4 * TUNING.fade, 2 * TUNING.fade + 1.5)


# --- rounds follow one another


def test_each_number_of_streams_has_its_record() -> None:
    records = {1: Record(), 2: Record()}
    costs = costs_of(HOPELESS, 0.1)
    controller = Controller(records.__getitem__, max_tokens=None)
    for streams in (1, 1, 2):
        next_round(controller, costs, streams)
        assert controller.record is records[streams]
        controller.observe(round_of(1), 1.0)
    assert (records[1].emitted, records[2].emitted) == (2, 1)


def test_a_round_begins_with_what_is_known_of_the_machine() -> None:
    costs, record = costs_of(MEMORY_BOUND, 0.05), Record(emitted=0, lost=99.0)
    controller = Controller(lambda streams: record, max_tokens=None)
    for floor in (1.0, QUIETER / 2):
        costs.target.slowness.floor = floor
        next_round(controller, costs)
    assert record.lost == 0


def test_plain_decoding_is_timed_without_drafts_and_offers_behind_rounds_that_settle() -> None:
    costs, free = costs_of(MEMORY_BOUND, 0.05), Ask("target", TOKENS, (1,), 2, (0.99,))
    for settling in (0, 2):
        costs.target.settling = settling
        record = proven(2.0)
        controller, granted = controller_of(costs, record), []
        for i in range(5):
            record.since_plain = 1 if i else 10_000
            next_round(controller, costs)
            granted.append((controller.grants_step(wanted(LIKELY), 1), controller.offer(free)[1]))
        plain = settling + 1
        assert granted == [(False, ())] * plain + [(True, (0.99,))] * (5 - plain)


def test_plain_decoding_is_timed_where_evaluations_are_not_as_expected() -> None:
    costs, record = costs_of(MEMORY_BOUND, 0.05), proven(2.0)
    costs.target.slowness.plain_step(1, -1.01 * SURPRISE)
    controller = controller_of(costs, record)
    assert not controller.grants_step(wanted(LIKELY), 1)
    costs.target.slowness.plain_step(1, 0.0)
    next_round(controller, costs)
    assert controller.grants_step(wanted(LIKELY), 1)


def test_who_rests_weighs_nothing_and_looks_again_when_rested() -> None:
    """And pauses again if nothing is guessed in as many rounds as that takes."""
    one = TUNING.light_s / 2
    costs, record = costs_of({1: one, 49: 49 * one}, one), Record(watch=Watch(left=2))
    controller, looked = controller_of(costs, record), []
    for _ in range(TUNING.look + 2):
        looked.append(controller.looks())
        weighed = next_round(controller, costs).weighed
        assert weighed == looked[-1]
        controller.observe(round_of(1), one if weighed else 0.0)
    assert looked == [False, False, *[True] * (TUNING.look - 1), False]


def test_a_light_target_times_plain_decoding_by_looking_away() -> None:
    """Once it is as old as it may be: more rarely if it was timed before."""
    one = TUNING.light_s / 2
    for timed, after in ((False, TUNING.fresh), (True, TUNING.refresh)):
        for since, looks in ((after - 1, [True] * 4), (after, [False, False, True, True])):
            costs = replace(costs_of({1: one, 49: 49 * one}, one), timed=timed)
            record = Record()
            controller = controller_of(costs, record)
            found = []
            for i in range(4):
                record.since_plain = since if i == 0 else 1
                controller.took(1, 1.0)  # so that it pauses for no other reason
                found.append(controller.looks())
            assert found == looks, (timed, since)


def test_nobody_pauses_where_looking_does_not_show() -> None:
    controller = controller_of(costs_of({1: TUNING.felt_s}, 0.1), Record())
    assert [controller.looks() for _ in range(9)] == [True] * 9
    assert controller.record.watch == Watch()
