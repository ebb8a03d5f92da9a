"""`edgespec run`: one prompt, the answer on stdout, the figures on stderr."""

import argparse
import json
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from edgespec.chat.template import RENDERER
from edgespec.chat.well_known import template_or_fallback, turn_end
from edgespec.commands import flags
from edgespec.commands.flag_table import add_flags
from edgespec.commands.open_pair import open_pair
from edgespec.commands.request import grammar_for, request_for
from edgespec.core.attachment import Attachment
from edgespec.core.stats import Statistics, Tally
from edgespec.core.values import Round
from edgespec.errors import SettingError
from edgespec.grammar.matchers import check
from edgespec.memory.recommended import recommended_here
from edgespec.pairs.files import chat_template, pair_name
from edgespec.pairs.projector import NONE
from edgespec.pairs.store import installed_pairs, note_speed
from edgespec.protocol.media_marks import mark, mixed
from edgespec.system.interrupt import interruptible
from edgespec.system.isolate import INTERRUPTED
from edgespec.system.odd_text import as_text, oddities

DESCRIPTION = "Answers one prompt."
NO_TEMPLATE = "the prompt is written as ChatML (--chat-template chooses another, --raw none)"
FLAGS = {
    "--raw": "continue the prompt as it is, without the chat template",
    "--image FILE *": "a picture to read; repeatable",
    "--json": "print one JSON object with the text and the figures",
}
FORM = {
    "--json-schema FILE": "the answer is JSON that fits this schema",
    "--grammar FILE": "the answer follows this grammar (GBNF or Lark)",
    "--regex R": "the whole answer matches this regular expression",
}


def add(command: argparse.ArgumentParser) -> None:
    """Adds the flags."""
    command.usage = "%(prog)s [FLAGS] [prompt]"  # all flags in a row would fill a screen
    command.add_argument(
        "prompt", nargs="?", help="the prompt; without it, or with -, it is read from standard input"
    )
    usual = command.add_argument_group("everyday flags")
    flags.add_conversation(usual)
    flags.add_length(usual)
    add_flags(usual, FLAGS)
    add_flags(command.add_argument_group("form of the answer").add_mutually_exclusive_group(), FORM)
    flags.add_model(command, media=True)
    flags.add_sampling(command, length=False)
    flags.add_speculation(command)
    flags.add_template(command)


def read_prompt(prompt: str | None) -> str:
    """Returns the prompt, from standard input for "-" or none. Raises SettingError if it is empty."""
    if prompt is None and sys.stdin.isatty():
        raise SettingError("there is no prompt: give one in quotes, or pipe it in")
    if prompt is None or prompt == "-":
        prompt = sys.stdin.buffer.read().decode("utf-8", "surrogateescape")
        prompt = prompt.removesuffix("\n").removesuffix("\r")
    if not prompt:
        raise SettingError("the prompt is empty: say something for the model to answer")
    for sentence in oddities(prompt):
        print(f"edgespec: {sentence}", file=sys.stderr)
    return as_text(prompt)


def run(arguments: argparse.Namespace) -> int:
    """Answers one prompt; returns the exit code (130 after Ctrl+C; what is written so far stays)."""
    request_for(arguments)  # refuses wrong values before anything is loaded
    grammar, given = grammar_for(arguments), chat_template(arguments)  # once: they may come through a pipe
    if grammar and grammar.kind != "json_schema":
        check(grammar)
    prompt, attached = read_prompt(arguments.prompt), [_picture(name) for name in arguments.image]
    marks = "".join(mark(i)["text"] for i in range(len(attached)))
    if attached and arguments.mmproj == NONE:
        raise SettingError("--image needs a projector: leave out --mmproj none")
    if not attached:
        arguments.mmproj = NONE  # nobody needs it
    if not arguments.raw:
        RENDERER.warm()
    with open_pair(arguments) as pair, interruptible() as interrupted:
        request = replace(request_for(arguments, pair), grammar=grammar)
        tally = Tally(pair.busy)
        if arguments.raw:
            tokens = pair.prompt_tokens(prompt)
            if attached:
                tokens = pair.mixed_tokens(mixed(marks + prompt, attached), add_bos=True)
        else:
            system = [{"role": "system", "content": arguments.system}] if arguments.system else []
            template = given or template_or_fallback(pair.target.chat_template)
            messages = [*system, {"role": "user", "content": marks + prompt}]
            tokens = pair.chat_tokens(messages, template, attached)
            request = replace(request, stop=(*request.stop, *turn_end(template)))
            if not (arguments.quiet or pair.target.chat_template or given):
                print(
                    f"edgespec: {pair.target.path.name} has no chat template: {NO_TEMPLATE}", file=sys.stderr
                )
        rounds = pair.generate(tokens, request, cancelled=interrupted)
        text = speak(rounds, tally, show=not arguments.json)
        if tally.notice:
            print(f"edgespec: {tally.notice}", file=sys.stderr)
        figures = tally.statistics(len(tokens))
        _keep_speed(arguments, figures)
        if arguments.json:
            print(json.dumps({"text": text, **figures.as_dict()}))
        if not arguments.quiet and not arguments.json:
            print("\n" + "\n".join(figures.lines()), file=sys.stderr)
            if sys.stderr.isatty() and not figures.drafted and speculates(arguments):
                has_draft = pair.draft_name is not None
                print(f"edgespec: {hint(pair_name(arguments), has_draft=has_draft)}", file=sys.stderr)
        return INTERRUPTED if tally.finish == "cancelled" else 0


def speculates(arguments: argparse.Namespace) -> bool:
    """Returns whether guesses were wanted."""
    return not arguments.no_draft and arguments.drafter != "none" and arguments.draft_length != 0


def hint(name: str | None, *, has_draft: bool) -> str:
    """Says why nothing was drafted, and which pair gains. name: of this pair, if it has one."""
    if has_draft:
        why = "a guess cost more than it was likely to save here"
    else:
        why = "this model has no draft, and its text repeated nothing"
    installed = installed_pairs()
    best = recommended_here(installed)
    if best is None or best.name == name:
        return f"nothing was drafted: {why}; `edgespec demo` shows what drafts can bring"
    how = f"`--pair {best.name}` chooses" if best.name in installed else f"`edgespec pull {best.name}` gets"
    return (
        f"nothing was drafted: {why}. {how} a pair that should gain here, {best.sentence}; "
        "`edgespec demo` shows it without a download"
    )


def _picture(name: str) -> Attachment:
    """Returns a file as a prompt contains it. Raises SettingError."""
    try:
        return Attachment("picture", Path(name).read_bytes())
    except OSError as error:
        raise SettingError(f"--image {name} cannot be read: {error.strerror}") from None


def _keep_speed(arguments: argparse.Namespace, figures: Statistics) -> None:
    """Notes how fast an installed pair was, if it ran as usual."""
    name = pair_name(arguments)
    if name and not arguments.no_draft and arguments.drafter == "auto" and arguments.draft_length is None:
        note_speed(name, tokens=figures.n_tokens, tok_per_s=figures.tok_per_s)


def speak(rounds: Iterable[Round], tally: Tally, *, show: bool = True) -> str:
    """Writes an answer to stdout as it comes and counts its rounds; returns it. Always ends its line."""
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
