"""The last estimates of `edgespec plan` for pairs on this machine, by name, for lists of pairs.

Standard library only. If the file cannot be read or written, nothing is known; that is no error.
"""

import json
import platform
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edgespec.system.config import cache_folder
from edgespec_models.checked_value import checked, kept_value
from edgespec_models.kept_file import write_whole


@dataclass(frozen=True, slots=True)
class PlannedSpeed:
    """How fast a pair would run here."""

    plain_tok_per_s: float
    tok_per_s: float | None  # with speculation; None without a draft
    acceptance: float | None  # of guesses, assumed here
    assumed: bool  # it was not measured

    @property
    def gain(self) -> float | None:
        """The expected speed-up."""
        return self.tok_per_s / self.plain_tok_per_s if self.tok_per_s else None

    def sentence(self) -> str:
        """Describes it in a few words."""
        text = f"planned here: {self.plain_tok_per_s:.1f} tok/s plain"
        if self.tok_per_s is None or self.acceptance is None:
            return text
        accepted = f"{self.acceptance:.0%} of guesses accepted" + (" (assumed)" if self.assumed else "")
        return f"{text}, {self.tok_per_s:.1f} with {accepted}"


def planned(name: str) -> PlannedSpeed | None:
    """Returns the estimate for a pair on this machine; None if there is none."""
    with suppress(TypeError):
        speed = checked(PlannedSpeed, _known().get(name))
        if speed.plain_tok_per_s > 0:
            return speed
    return None


def keep(name: str, speed: PlannedSpeed) -> None:
    """Saves the estimate for a pair."""
    known = _known()
    known[name] = asdict(speed)
    with suppress(OSError):
        write_whole(kept_in(), json.dumps(known), sync=False)


def _known() -> dict[str, Any]:
    return kept_value(dict[str, Any], kept_in()) or {}


def kept_in() -> Path:
    """Returns the file of the plans of this machine."""
    return cache_folder() / "plans" / f"names-{platform.node() or 'here'}.json"
