"""The store of prefixes in host memory: what it spares, and what goes when it is full."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgespec.llama.saved import PrefixStore, Saved, same_beginning

on_a_busy_machine = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def tokens(*ids: int) -> bytes:
    return np.array(ids, np.int32).tobytes()


def saved(*ids: int, size: int = 100, cuttable: bool = True) -> Saved:
    return Saved(tokens(*ids), np.zeros(size - 4 * len(ids), np.uint8), 0 if cuttable else len(ids))


def test_the_longest_beginning_is_found() -> None:
    store = PrefixStore(1000)
    store.put({"target": saved(1, 2, 3)})
    store.put({"target": saved(1, 2, 9, 9, 9)})
    prefix, n = store.best(tokens(1, 2, 3, 4))
    assert prefix and prefix["target"].tokens == tokens(1, 2, 3) and n == 3
    assert store.best(tokens(7, 1, 2)) == (None, 0)


def test_the_last_token_is_always_evaluated() -> None:
    """Without it there are no logits to go on from."""
    assert saved(1, 2, 3).useful(tokens(1, 2, 3)) == 2


def test_what_cannot_be_cut_is_of_use_as_a_whole_or_not_at_all() -> None:
    recurrent = saved(1, 2, 3, cuttable=False)
    assert recurrent.useful(tokens(1, 2, 3, 4)) == 3
    assert recurrent.useful(tokens(1, 2, 3)) == recurrent.useful(tokens(1, 2, 5, 6)) == 0


def test_what_was_used_longest_ago_goes_first() -> None:
    store = PrefixStore(300)
    for first in (1, 2, 3):
        store.put({"target": saved(first, 7)})
    assert store.holds(tokens(1, 7)), "and counts as used"
    store.put({"target": saved(4, 7)})
    assert [store.best(tokens(first, 7, 0))[1] for first in (1, 2, 3, 4)] == [2, 0, 2, 2]
    assert store.n_bytes == 300 and len(store) == 3


def test_a_longer_text_takes_the_place_of_its_beginning() -> None:
    store = PrefixStore(1000)
    store.put({"target": saved(1, 2)})
    store.put({"target": saved(1, 2, 3)})
    assert len(store) == 1 and store.n_bytes == 100
    store.put({"target": saved(1, 2, 3, 4, cuttable=False)})
    assert len(store) == 2, "one that cannot be cut does not stand for its beginnings"


def test_what_is_larger_than_the_budget_is_not_kept() -> None:
    store = PrefixStore(150)
    store.put({"target": saved(1)})
    store.put({"target": saved(2), "draft": saved(2)})
    assert len(store) == 1 and store.n_bytes == 100


@on_a_busy_machine
@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=6), st.integers(60, 200), st.booleans()),
        max_size=20,
    )
)
def test_the_budget_is_kept_and_counted_right(puts: list[tuple[list[int], int, bool]]) -> None:
    store = PrefixStore(500)
    for ids, size, cuttable in puts:
        one = saved(*ids, size=size, cuttable=cuttable)
        store.put({"target": one})
        assert store.n_bytes == sum(kept.n_bytes for kept in store._prefixes) <= 500
        assert store.best(one.tokens + tokens(0))[1] >= len(ids), "what was put last is there"


@on_a_busy_machine
@given(st.lists(st.integers(0, 1)), st.lists(st.integers(0, 1)))
def test_the_beginning_that_two_share(one: list[int], other: list[int]) -> None:
    expected = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)
    found = same_beginning(tokens(*one), tokens(*other))
    assert found == (min(len(one), len(other)) if expected is None else expected)
