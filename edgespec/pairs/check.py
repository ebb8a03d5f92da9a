"""Refuses a draft that cannot guess for the target, before any weights are loaded.

The rule itself is `edgespec_models.shelf.pair_check`, which `edgespec pull` asks before a download too.
"""

from __future__ import annotations

import os
from pathlib import Path

from edgespec.errors import ModelFileError, ModelUnsupportedError, PairMismatchError
from edgespec_models.gguf.facts import why_not_usable
from edgespec_models.gguf.header import HeaderError, read_file
from edgespec_models.shelf.pair_check import check_headers


def check_pair(target: str | os.PathLike[str], draft: str | os.PathLike[str]) -> None:
    """Reads both headers, no weights.

    Raises PairMismatchError where the draft is of no use, ModelFileError and ModelUnsupportedError where one
    of the files is of none.
    """
    try:
        headers = read_file(target), read_file(draft)
    except HeaderError as error:
        raise ModelFileError(str(error)) from None
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
