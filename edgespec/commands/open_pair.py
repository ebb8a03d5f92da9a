"""Loads the pair that a command's flags ask for, and says what a user should know of it."""

import argparse
import sys
from dataclasses import replace

from edgespec.commands.loading import pair_settings
from edgespec.commands.status_line import status_line
from edgespec.engine.pair import Pair
from edgespec.pairs.files import pair_files
from edgespec.pairs.shown_name import shown_name
from edgespec.system.self_test import self_test


def open_pair(arguments: argparse.Namespace, *, remember: bool = True) -> Pair:
    """Loads the pair that the flags ask for. remember: save what is learned of it."""
    settings = replace(pair_settings(arguments), remember=remember)
    target, draft = pair_files(arguments)
    with status_line() as show:
        show(f"loading {shown_name(target)} ...")
        pair = Pair(target, draft, settings)
        if arguments.draft_length is None and arguments.drafter != "none":
            pair.costs()  # measured now, not before the first answer
    if advice := self_test().advice:
        print(f"edgespec: {advice}", file=sys.stderr)
    for warning in filter(None, (pair.beyond_trained, pair.no_media)):
        print(f"edgespec: {warning}", file=sys.stderr)
    if pair.gave_up:
        print(f"edgespec: to fit into memory: {'; '.join(pair.gave_up)}", file=sys.stderr)
    if pair.translation and draft:
        shared = f"has {pair.translation.shared:.0%} of the target's tokens"
        print(
            f"edgespec: {draft.name} has another vocabulary ({shared}); its guesses are translated",
            file=sys.stderr,
        )
    return pair
