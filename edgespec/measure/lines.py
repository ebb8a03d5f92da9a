"""What is compared, and in which order: lines (a way of decoding), and units (one prompt, all its lines).

Invariant: within a unit every line gets the same prompt, seed and length, in random order, so
that a machine that grows slower favours none.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from edgespec.errors import SettingError
from edgespec.measure.prompts import Prompt, by_kind

Mode = Literal["greedy", "sampled", "coupled"]
MODES: tuple[Mode, ...] = get_args(Mode)
MEANING: dict[Mode, str] = {
    "greedy": "temperature 0",
    "sampled": "block verification, fixed rng",
    "coupled": "a user's seed, same text with and without",
}
SWEPT = (1, 2, 3, 4, 6, 8, 12, 16)  # 0 is the plain line
PLAIN, OURS = "plain", "edgespec"


@dataclass(frozen=True, slots=True)
class Line:
    """One way of decoding."""

    mode: Mode
    name: str
    plain: bool = False
    draft_length: int | None = None  # None is the controller


@dataclass(frozen=True, slots=True)
class Unit:
    """One prompt under one mode, the `repeat`-th time, with its lines in the order of measurement."""

    number: int
    prompt: Prompt
    mode: Mode
    repeat: int
    lines: tuple[Line, ...]


def parse_modes(text: str) -> tuple[Mode, ...]:
    """Reads `greedy,sampled`. Raises SettingError."""
    wanted = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in wanted if name not in MODES]
    if unknown or not wanted:
        raise SettingError(f"--modes {text!r} is not understood: give some of {','.join(MODES)}")
    return tuple(mode for mode in MODES if mode in wanted)


def lines_for(modes: Sequence[Mode], *, sweep: bool, draft_length: int | None = None) -> list[Line]:
    """Returns the lines of a run. draft_length: what --draft-length fixes."""
    lines = []
    for mode in modes:
        lines.append(Line(mode, PLAIN, plain=True))
        lines.append(Line(mode, OURS, draft_length=draft_length))
        lines += [Line(mode, f"{OURS} n={n}", draft_length=n) for n in SWEPT if sweep]
    return lines


def units_for(
    prompts: Sequence[Prompt], lines: Sequence[Line], *, repeats: int, rng: np.random.Generator
) -> list[Unit]:
    """Returns every prompt under every mode, ordered so that running out of time leaves kinds and modes even:
    a pass takes each prompt once, its modes in turn; the next pass shifts the modes by one."""
    modes = list(dict.fromkeys(line.mode for line in lines))
    units: list[Unit] = []
    for repeat in range(repeats):
        for shift in range(len(modes)):
            for r, row in enumerate(by_kind(prompts)):
                for c, prompt in enumerate(row):
                    mode = modes[(r + c + shift) % len(modes)]
                    mine = [line for line in lines if line.mode == mode]
                    order = tuple(mine[i] for i in rng.permutation(len(mine)))
                    units.append(Unit(len(units), prompt, mode, repeat, order))
    return units
