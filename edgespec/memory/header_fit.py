"""Does a pair fit this machine, and how well, by the headers of its files alone?"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from edgespec.errors import EdgeSpecError, UnknownPlaceError
from edgespec.memory.at_load import pair_fit
from edgespec.pairs.settings import PairSettings
from edgespec_models.fit.allotment import ALL
from edgespec_models.fit.fit import USEFUL_N_CTX, Fit
from edgespec_models.fit.need import RAM, Need, Parts
from edgespec_models.gguf.header import Header

if TYPE_CHECKING:  # it takes a while to load
    from edgespec_models.hub.choose_file import Chosen


def fit_of_heads(
    target: Sequence[Header],
    draft: Sequence[Header] | None,
    settings: PairSettings | None = None,
    projector: Need | None = None,
) -> Fit | None:
    """Returns the memory that a pair takes, by its headers alone; None if that is impossible.

    Raises UnknownPlaceError.
    """
    with tempfile.TemporaryDirectory(prefix="edgespec-") as folder:
        try:
            first = write_stub(Path(folder), "target", target)
            second = write_stub(Path(folder), "draft", draft) if draft else None
            return pair_fit(first, second, settings or PairSettings(), projector=projector)
        except UnknownPlaceError:
            raise
        except (EdgeSpecError, OSError):
            return None


def need_of_projector(projector: Chosen | None) -> Need | None:
    """Returns what a projector of the hub would take, by its size; None without one."""
    return Need({RAM: Parts(weights=projector.size)}, 0, "formula") if projector else None


def suitable(
    heads: Sequence[Sequence[Header]],
    projector: Chosen | None = None,
    settings: PairSettings | None = None,
) -> int:
    """Returns how well models suit this machine beside a projector: 0 if they do not fit, 1 if layers of the
    target (not its experts) must lie in main memory beside a graphics card or the context is short, else 2.
    """
    fit = fit_of_heads(heads[0], heads[1] if len(heads) > 1 else None, settings, need_of_projector(projector))
    return grade(fit, heads[0][0].of_architecture("context_length") or USEFUL_N_CTX)


def grade(fit: Fit | None, n_ctx_train: int) -> int:
    """Returns how well something suits, as in `suitable`."""
    if fit is None or not fit.fits:
        return 2 if fit is None else 0
    long_enough = fit.choice.n_ctx >= min(USEFUL_N_CTX, n_ctx_train)
    return 2 if fit.choice.n_gpu_layers == ALL and long_enough else 1


def write_stub(folder: Path, name: str, headers: Sequence[Header]) -> Path:
    """Writes sparse files of the full sizes; returns the first. They take no more disk than the headers."""
    paths = [folder / f"{name}.gguf"]
    if len(headers) > 1:
        n = len(headers)
        paths = [folder / f"{name}-{i:05d}-of-{n:05d}.gguf" for i in range(1, n + 1)]
    for path, header in zip(paths, headers, strict=True):
        path.write_bytes(header.raw)
        with open(path, "r+b") as file:
            file.truncate(max(len(header.raw), header.file_size or 0))
    return paths[0]
