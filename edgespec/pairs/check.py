"""Refuses a draft that cannot guess for the target, before any weights are loaded.

The rule itself is `edgespec_models.shelf.pair_check`, which `edgespec pull` also applies before a download.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from edgespec.errors import ModelFileError, ModelUnsupportedError, PairMismatchError
from edgespec.pairs.adapters import Adapter, check_adapters
from edgespec.pairs.placement import Placement
from edgespec_models.gguf.facts import why_not_usable
from edgespec_models.gguf.head_check import bad_ids, why_not_driven
from edgespec_models.gguf.header import Header, HeaderError, read_file, split_names
from edgespec_models.gguf.heads import Head, head_of
from edgespec_models.gguf.translation import Translation
from edgespec_models.shelf.pair_check import check_headers


@contextmanager
def header_errors() -> Iterator[None]:
    """Turns what is wrong with a header into a ModelFileError."""
    try:
        yield
    except HeaderError as error:
        raise ModelFileError(str(error)) from None


def check_pair(target: str | os.PathLike[str], draft: str | os.PathLike[str]) -> Translation | None:
    """Reads both headers, no weights; returns how guesses are translated if the vocabularies differ.

    Raises PairMismatchError if the draft is unusable, ModelFileError and ModelUnsupportedError if one of the
    files is.
    """
    with header_errors():
        headers = read_file(target), read_file(draft)
    for header in headers:
        reason = why_not_usable(header)
        if reason:
            raise ModelUnsupportedError(reason)
    verdict = check_headers(*headers)
    if not verdict.usable:
        raise PairMismatchError(
            f"{Path(draft).name} cannot draft for {Path(target).name}: {verdict}; "
            "choose a draft of the same model family, or run with --no-draft"
        )
    return verdict.translation


def check_placement(path: str | os.PathLike[str], placement: Placement) -> None:
    """Raises SettingError for a pattern that matches no tensor of a model, ModelFileError for no model."""
    if placement.overrides:
        with header_errors():
            placement.check(headers_of(path))


def check_lora(target: str | os.PathLike[str], adapters: Sequence[Adapter]) -> None:
    """Raises ModelFileError for a file that is no adapter, PairMismatchError for another model's."""
    if adapters:
        with header_errors():
            check_adapters(adapters, headers_of(target))


def find_head(target: str | os.PathLike[str], draft: str | os.PathLike[str] | None) -> Head | None:
    """Returns the head in a draft's file, or without a draft in the target's; None if there is none.

    A head in the target's own file that cannot run is ignored. Raises PairMismatchError for a draft
    that is a head and cannot guess for the target, ModelFileError for a file that is no model.
    """
    with header_errors():
        of_target = headers_of(target)
        headers = of_target if draft is None else headers_of(draft)
        head, alone = head_of(headers), head_of(of_target)
        if alone and alone.alone:
            raise ModelUnsupportedError(
                f"{Path(target).name} is {alone.a_name} alone, which generates no text: name the "
                "model that it was made for with --target, and the head with --draft"
            )
        if head is None or (draft is None) == head.alone:
            return None
        why = why_not_driven(head, headers, of_target)
        if why is None and draft is not None:
            why = bad_ids(Path(draft), headers[0])
    if why and draft is not None:
        raise PairMismatchError(
            f"{Path(draft).name} is {head.a_name} that cannot guess for {Path(target).name}: {why}; "
            "choose the head that was made for this target, or run with --no-draft"
        )
    return None if why else head


def headers_of(path: str | os.PathLike[str]) -> list[Header]:
    """Returns the headers of all parts of a model. Raises HeaderError."""
    folder, name = Path(path).parent, Path(path).name
    return [read_file(folder / part) for part in split_names(name)]
