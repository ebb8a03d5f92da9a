"""Which pair is exported, by the flags: of the catalogue, installed, or files."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from edgespec.commands.export.exported import LENGTH, Exported, Guesses, of_catalogue, of_file
from edgespec.commands.export.length import MeasuredLength, measured_length
from edgespec.errors import EdgeSpecError, SettingError
from edgespec.pairs.check import check_pair, find_head, headers_of
from edgespec.pairs.files import pair_files
from edgespec.pairs.settings import PairSettings
from edgespec.pairs.store import open_store, store_told
from edgespec_models.gguf.header import HeaderError
from edgespec_models.shelf.catalogue import CatalogueError, find
from edgespec_models.shelf.installed_pair import InstalledModel, InstalledPair
from edgespec_models.shelf.store import EMBEDDED

USUAL_N_CTX = 8192


def exported(arguments: argparse.Namespace) -> Exported:
    """Returns the named pair: of the catalogue if it is not installed.

    Raises SettingError, or an error of the pair's files.
    """
    installed = _installed(arguments.pair)
    if arguments.pair and arguments.pair != EMBEDDED and installed is None:
        try:
            entry = find(arguments.pair)
        except CatalogueError as error:
            raise SettingError(str(error)) from None
        length, why = arguments.draft_length or LENGTH, _why(arguments, None)
        found = of_catalogue(
            entry, n_ctx=arguments.ctx or min(USUAL_N_CTX, entry.context), length=length, length_from=why
        )
        return replace(found, draft=None, guesses=None) if arguments.no_draft else found
    arguments.grow, arguments.drafter = None, "auto"
    target, draft = pair_files(arguments)
    return _of_files(arguments, target, draft, installed)


def _installed(name: str | None) -> InstalledPair | None:
    with store_told():
        pairs = {pair.name: pair for pair in open_store().pairs()}
    return pairs.get(name) if name else None


def _of_files(
    arguments: argparse.Namespace, target: Path, draft: Path | None, installed: InstalledPair | None
) -> Exported:
    try:
        headers = {path: headers_of(path)[0] for path in (target, draft) if path}
    except HeaderError as error:
        raise EdgeSpecError(str(error)) from None
    head = None if arguments.no_draft else find_head(target, draft)
    translated = bool(draft and head is None and check_pair(target, draft))
    trained = headers[target].of_architecture("context_length", USUAL_N_CTX) or USUAL_N_CTX
    guesses: Guesses | None = "draft" if draft else None
    if head:
        guesses = head.variant  # type: ignore[assignment]
    known = None
    if guesses and arguments.draft_length is None:
        known = measured_length(target, draft, head.kind if head else None, PairSettings())
    return Exported(
        name=arguments.pair or target.stem,
        target=of_file(target, headers[target], _of(installed, target)),
        draft=of_file(draft, headers[draft], _of(installed, draft)) if draft else None,
        guesses=guesses,
        length=arguments.draft_length or (known.length if known else LENGTH),
        length_from=_why(arguments, known),
        n_ctx=arguments.ctx or min(USUAL_N_CTX, trained),
        translated=translated,
    )


def _of(pair: InstalledPair | None, path: Path) -> InstalledModel | None:
    return next((model for model in pair.models if model.path == path), None) if pair else None


def _why(arguments: argparse.Namespace, known: MeasuredLength | None) -> str:
    """Says where a draft length comes from, in a clause."""
    if arguments.draft_length:
        return "as --draft-length says"
    if known:
        return (
            f"the fastest on this machine, by its costs and the {known.accepted:.0%} of guesses accepted here"
        )
    return "a usual length, because the pair has not run here enough to tell (`edgespec bench` measures it)"
