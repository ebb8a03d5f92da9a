"""`edgespec chat`: a conversation, line by line, with what speculation did after each answer."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys

import numpy as np
from numpy.typing import NDArray

from edgespec.engine import Pair
from edgespec.errors import EdgeSpecError, PromptTooLongError
from edgespec.interrupt import Interrupt
from edgespec.one_shot import open_pair, request_for, speak
from edgespec.request import Request
from edgespec.stats import Tally
from edgespec_models import tiny

with contextlib.suppress(ImportError):  # not on Windows
    import readline  # noqa: F401  (input() then has a history and line editing)

HELP = "/clear begins anew, /help shows this, Ctrl+C stops an answer, Ctrl+D ends."


def chat(arguments: argparse.Namespace) -> int:
    """Talks until the input ends; returns the exit code."""
    request_for(arguments)
    talking = sys.stdin.isatty()
    with open_pair(arguments) as pair:
        request = request_for(arguments, pair)
        pair.generate([0], request)  # evaluates nothing; what the pair cannot do is told now
        if talking:
            print(_greeting(pair), file=sys.stderr)
        system = [{"role": "system", "content": arguments.system}] if arguments.system else []
        turns: list[dict[str, str]] = []
        while (line := _read_line(talking)) is not None:
            if line.startswith("/"):
                if line in ("/exit", "/quit", "/bye"):
                    break
                if line == "/clear":
                    turns.clear()
                known = {"/clear": "A new conversation.", "/help": HELP}
                print(known.get(line, f"{line.split()[0]} is not a command. {HELP}"), file=sys.stderr)
            elif line.strip():
                turns.append({"role": "user", "content": line})
                try:
                    answer = _answer(pair, request, system, turns, quiet=arguments.quiet)
                    turns.append({"role": "assistant", "content": answer})
                except EdgeSpecError as error:  # the conversation goes on without that question
                    turns.pop()
                    print(f"edgespec: {error}", file=sys.stderr)
    return 0


def _greeting(pair: Pair) -> str:
    lines = [f"{pair.target.name}, drafting with {pair.draft.name}" if pair.draft else pair.target.name, HELP]
    if pair.target.path == tiny.target_path():
        lines.insert(1, "It ships with EdgeSpec and knows a little about Python's library, nothing else.")
        lines.insert(2, "Your own models: --target FILE --draft FILE.")
    return "\n".join(lines) + "\n"


def _read_line(talking: bool) -> str | None:
    """Returns the next line; None at the end of the input."""
    prompt = "> " if talking else ""
    if "readline" not in sys.modules:  # input() would show its prompt on C's stderr, which is turned aside
        print(prompt, end="", flush=True)
        prompt = ""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return input(prompt)
    except KeyboardInterrupt:  # as in a shell: the line is dropped, the conversation stays
        print("\n(Ctrl+D ends)", file=sys.stderr)
        return ""
    except EOFError:
        if talking:
            print(file=sys.stderr)
        return None
    finally:
        signal.signal(signal.SIGINT, before)


def _answer(
    pair: Pair, request: Request, system: list[dict[str, str]], turns: list[dict[str, str]], *, quiet: bool
) -> str:
    """Streams one answer to stdout, figures to stderr; returns it."""
    with Interrupt() as interrupt:
        tally = Tally(pair.busy)
        prompt = _fitting_prompt(pair, system, turns)
        text = speak(pair.generate(prompt, request, cancelled=interrupt), tally)
    if interrupt.asked:
        print("(stopped)", file=sys.stderr)
    if not quiet:
        figures = tally.statistics(len(prompt)).lines()
        print("\n".join(f"  {line}" for line in figures) + "\n", file=sys.stderr)
    return text


def _fitting_prompt(
    pair: Pair, system: list[dict[str, str]], turns: list[dict[str, str]]
) -> NDArray[np.int32]:
    """Returns the prompt. Where it would fill over three quarters of the context, the oldest turns go.

    They go down to half of it at once: what stays the same at the front need not be evaluated again.
    Raises PromptTooLongError where the last question alone does not fit, and leaves the turns as they are.
    """
    prompt = pair.chat_tokens([*system, *turns])
    if prompt.size <= pair.n_ctx * 3 // 4:
        return prompt
    alone = pair.chat_tokens([*system, turns[-1]])
    if alone.size >= pair.n_ctx:
        raise PromptTooLongError(alone.size, pair.n_ctx)
    before = len(turns)
    while len(turns) > 2 and prompt.size > pair.n_ctx // 2:
        del turns[:2]  # a question and its answer
        prompt = pair.chat_tokens([*system, *turns])
    if left_out := before - len(turns):
        print(f"(the oldest {left_out} messages no longer fit and are left out)", file=sys.stderr)
    return prompt
