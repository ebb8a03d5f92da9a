"""Grammars are tried where they can be stopped, and a slow one delays no other."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
from commands import posix
from served import until

from edgespec.engine.trials import Trials
from edgespec.errors import GivenUpError, GrammarError
from edgespec.grammar.grammar import CONTROL, Grammar, json_schema
from edgespec.grammar.lark import as_lark
from edgespec.grammar.matchers import Matchers
from edgespec.system.limited_child import GIVEN_UP

SMALL = Grammar("gbnf", 'root ::= "a" root | "b"')
SLOW = json_schema({"type": "object", "properties": {f"p{i}": {} for i in range(12_000)}})


@pytest.fixture(scope="module")
def trials() -> Iterator[Trials]:
    with Trials(lambda: [CONTROL + b"<end>"], cpu_s=1) as trials:
        yield trials


def test_a_grammar_comes_back_as_llguidance_reads_it(trials: Trials) -> None:
    assert as_lark(SMALL.text) in trials.lark(SMALL)
    assert trials.lark(Grammar("regex", "a+")) and trials.lark(Grammar("lark", 'start: "a" <end>'))


def test_what_is_wrong_with_a_grammar_is_reported(trials: Trials) -> None:
    with pytest.raises(GrammarError, match="'x' is not defined"):
        trials.lark(Grammar("gbnf", "root ::= x"))


def test_what_only_the_vocabulary_tells_is_left_to_it(trials: Trials) -> None:
    assert trials.lark(Grammar("regex", "(")), "the matcher that is made of it says what is wrong"


@pytest.mark.slow
@posix
def test_one_that_takes_too_long_is_refused_and_the_others_are_read_in_the_meantime(trials: Trials) -> None:
    """A schema of 12,000 properties held everybody for minutes."""
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(trials.lark, SLOW)
        n = 0
        while not slow.done():
            trials.lark(SMALL)
            n += 1
        assert n > 5
        with pytest.raises(GrammarError, match="takes more than 1 s.* make it smaller"):
            slow.result()
    assert trials.lark(SMALL)


@pytest.mark.slow
@posix
def test_a_child_that_was_killed_or_stopped_is_replaced() -> None:
    with Trials(patience_s=2.5) as trials:
        os.kill(_child(trials).pid, signal.SIGSTOP)
        with pytest.raises(GrammarError):
            trials.lark(SMALL)
        child = _child(trials)
        child.kill()
        psutil.wait_procs([child], 5)
        assert trials.lark(SMALL)
        child = _child(trials)
    assert not child.is_running()


@posix
def test_one_whose_sender_has_left_ends_and_others_are_tried() -> None:
    """Four schemas that were given up took all children, for five seconds of the processor each."""
    gone = threading.Event()

    def given_up(grammar: Grammar) -> str:
        GIVEN_UP.set(gone)
        return trials.lark(grammar)

    with Trials(cpu_s=60, children=1) as trials, ThreadPoolExecutor(2) as pool:
        old = _child(trials)
        waiting = [pool.submit(given_up, SLOW), pool.submit(given_up, SLOW)]
        until(lambda: old.cpu_times().user > 0.5)
        gone.set()
        assert trials.lark(SMALL)
        for one in waiting:
            with pytest.raises(GivenUpError):
                one.result(10)
        assert not old.is_running()


def _child(trials: Trials) -> psutil.Process:
    assert trials.lark(SMALL)
    [child] = trials.children.started
    return psutil.Process(child.pid)


@posix
def test_one_that_ends_its_reader_is_refused(trials: Trials) -> None:
    """llguidance recurses with every rule: a chain of some thousands overflows its stack."""
    chain = "\n".join(f'r{i} ::= "c" r{i + 1}' for i in range(5000))
    with pytest.raises(GrammarError, match="make it smaller"):
        trials.lark(Grammar("gbnf", f'root ::= "a" | "b" r0\nr5000 ::= root\n{chain}'))


def test_who_wants_a_new_grammar_waits_for_no_other_and_two_who_want_the_same_compile_it_once() -> None:
    """One lock was held while any grammar was compiled."""
    every = Matchers(lambda shown: [bytes([i]) for i in range(256)] + [b""], frozenset({256}), 257)
    begun, go_on, asked = threading.Event(), threading.Event(), []

    def reading(grammar: Grammar) -> str:
        asked.append(grammar)
        if grammar == SMALL:
            begun.set()
            assert go_on.wait(10)
        return matchers_lark(grammar)

    matchers_lark, every.lark = every.lark, reading
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(every.compile, SMALL)]
        assert begun.wait(10)
        waiting.append(pool.submit(every.compile, SMALL))
        other = Grammar("regex", "b+")
        assert not every.knows(other)
        every.compile(other)
        assert every.knows(other) and not every.knows(SMALL)
        go_on.set()
        for one in waiting:
            one.result()
    assert every.knows(SMALL) and asked.count(SMALL) == 1


def test_who_wants_the_same_grammar_gets_it_although_the_first_has_left() -> None:
    every = Matchers(lambda shown: [bytes([i]) for i in range(256)] + [b""], frozenset({256}), 257)
    begun, leave, asked = threading.Event(), threading.Event(), []

    def reading(grammar: Grammar) -> str:
        asked.append(grammar)
        if len(asked) == 1:
            begun.set()
            assert leave.wait(10)
            raise GivenUpError
        return matchers_lark(grammar)

    matchers_lark, every.lark = every.lark, reading
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(every.compile, SMALL)
        assert begun.wait(10)
        second = pool.submit(every.compile, SMALL)
        leave.set()
        with pytest.raises(GivenUpError):
            first.result(10)
        second.result(10)
    assert every.knows(SMALL) and asked == [SMALL, SMALL]
