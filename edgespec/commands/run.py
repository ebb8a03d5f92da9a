"""`edgespec run`: one prompt, the answer on stdout, the figures on stderr."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from edgespec.chat.renderer import RENDERER
from edgespec.chat.well_known import template_or_fallback, turn_end
from edgespec.commands.status_line import StatusLine
from edgespec.core.request import Request
from edgespec.core.stats import Statistics, Tally
from edgespec.core.values import Round
from edgespec.engine.pair import Pair
from edgespec.errors import SettingError
from edgespec.grammar.grammar import Grammar, grammar_text
from edgespec.pairs.files import chat_template, pair_files, pair_name, pair_settings
from edgespec.pairs.store import note_speed
from edgespec.sampling.settings import NUMBERS, sampler_order, sampling_for
from edgespec.system.interrupt import Interrupt
from edgespec.system.isolate import INTERRUPTED
from edgespec.system.self_test import self_test

NO_TEMPLATE = "the prompt is written as ChatML (--chat-template chooses another, --raw none)"


def open_pair(arguments: argparse.Namespace, *, remember: bool = True) -> Pair:
    """Loads the pair that the flags ask for. remember: what is learned of it is kept for the next time."""
    settings = pair_settings(arguments, remember=remember)
    target, draft = pair_files(arguments)
    with _notice(f"loading {target.name}"):
        pair = Pair(target, draft, settings)
        if arguments.draft_length is None and arguments.drafter != "none":
            pair.costs()  # measured now, not before the first answer
    if advice := self_test().advice:
        print(f"edgespec: {advice}", file=sys.stderr)
    if pair.gave_up:
        print(f"edgespec: to fit into memory: {'; '.join(pair.gave_up)}", file=sys.stderr)
    if pair.translation and draft:
        shared = f"has {pair.translation.shared:.0%} of the target's tokens"
        print(
            f"edgespec: {draft.name} has another vocabulary ({shared}): its guesses are translated",
            file=sys.stderr,
        )
    return pair


@contextmanager
def _notice(text: str) -> Iterator[None]:
    """Shows on a terminal what is going on, and takes it away again."""
    line = StatusLine()
    line.show(f"{text} ...")
    try:
        yield
    finally:
        line.clear()


def request_for(arguments: argparse.Namespace, pair: Pair | None = None) -> Request:
    """Builds the request from the flags, over the model's own sampling defaults. Raises SettingError."""
    wanted: dict[str, object] = {name: getattr(arguments, name) for name in NUMBERS}
    wanted["dry_sequence_breakers"] = tuple(arguments.dry_breaker) or None
    wanted["samplers"] = None if arguments.samplers is None else sampler_order(arguments.samplers)
    bias = dict(_bias(text) for text in arguments.logit_bias)
    metadata = pair.target.metadata if pair else {}
    if arguments.max_tokens < 1:
        raise SettingError(f"-n is {arguments.max_tokens}: it must be 1 or more")
    return Request(
        sampling=sampling_for(metadata, **wanted, logit_bias=bias or None),
        max_tokens=arguments.max_tokens,
        stop=arguments.stop,
        seed=arguments.seed,
        drafter="none" if arguments.no_draft else arguments.drafter,
        draft_length=arguments.draft_length,
        grammar=grammar_for(arguments),
    )


def grammar_for(arguments: argparse.Namespace) -> Grammar | None:
    """Returns what the answer may look like, by the flags. Raises SettingError."""
    schema, grammar, regex = (getattr(arguments, name, None) for name in ("json_schema", "grammar", "regex"))
    if schema is not None:
        return Grammar("json_schema", _file(schema, "--json-schema"))
    if grammar is not None:
        return grammar_text(_file(grammar, "--grammar"))
    return None if regex is None else Grammar("regex", regex)


def _file(path: str, flag: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise SettingError(f"{flag} {path} is not text in UTF-8: name a text file") from None
    except OSError as error:
        raise SettingError(f"{flag} {path} cannot be read: {error.strerror}") from None


def _bias(text: str) -> tuple[int, float]:
    token, _, bias = text.partition("=")
    try:
        return int(token), float(bias)
    except ValueError:
        raise SettingError(
            f"--logit-bias {text!r} is not understood: write TOKEN=BIAS, as in 42=-1.5"
        ) from None


def read_prompt(prompt: str | None) -> str:
    """Returns the prompt, from standard input for "-" or none. Raises SettingError if it is empty."""
    if prompt is None and sys.stdin.isatty():
        raise SettingError("there is no prompt: give one in quotes, or pipe it in")
    if prompt is None or prompt == "-":
        prompt = sys.stdin.buffer.read().decode("utf-8", "replace").removesuffix("\n").removesuffix("\r")
    if not prompt:
        raise SettingError("the prompt is empty: say something for the model to answer")
    return prompt


def run(arguments: argparse.Namespace) -> int:
    """Answers one prompt; returns the exit code (130 after Ctrl+C, what was said kept)."""
    request_for(arguments)  # nonsense is refused before anything is loaded
    template = chat_template(arguments)
    prompt = read_prompt(arguments.prompt)
    if not arguments.raw:
        RENDERER.warm()
    with open_pair(arguments) as pair, Interrupt() as interrupt:
        request = request_for(arguments, pair)
        tally = Tally(pair.busy)
        if arguments.raw:
            tokens = pair.prompt_tokens(prompt)
        else:
            system = [{"role": "system", "content": arguments.system}] if arguments.system else []
            template = template or template_or_fallback(pair.target.chat_template)
            tokens = pair.chat_tokens([*system, {"role": "user", "content": prompt}], template)
            request = replace(request, stop=(*request.stop, *turn_end(template)))
            if not (arguments.quiet or pair.target.chat_template or chat_template(arguments)):
                print(
                    f"edgespec: {pair.target.path.name} has no chat template: {NO_TEMPLATE}", file=sys.stderr
                )
        rounds = pair.generate(tokens, request, cancelled=interrupt)
        text = speak(rounds, tally, show=not arguments.json)
        figures = tally.statistics(len(tokens))
        _keep_speed(arguments, figures)
        if arguments.json:
            print(json.dumps({"text": text, **figures.as_dict()}))
        if not arguments.quiet and not arguments.json:
            print("\n" + "\n".join(figures.lines()), file=sys.stderr)
        return INTERRUPTED if tally.finish == "cancelled" else 0


def _keep_speed(arguments: argparse.Namespace, figures: Statistics) -> None:
    """Keeps how fast an installed pair was, if it ran as it usually does."""
    name = pair_name(arguments)
    if name and not arguments.no_draft and arguments.drafter == "auto" and arguments.draft_length is None:
        note_speed(name, tokens=figures.n_tokens, tok_per_s=figures.tok_per_s)


def speak(rounds: Iterable[Round], tally: Tally, *, show: bool = True) -> str:
    """Writes an answer to stdout as it comes and counts its rounds; returns it. Its line is always ended."""
    pieces: list[str] = []
    try:
        for round_ in rounds:
            tally.note(round_)
            pieces.append(round_.text)
            if show:
                sys.stdout.write(round_.text)
                sys.stdout.flush()
    finally:  # an error message begins a line of its own
        if show and pieces and not "".join(pieces).endswith("\n"):
            sys.stdout.write("\n")
            sys.stdout.flush()
    return "".join(pieces)
