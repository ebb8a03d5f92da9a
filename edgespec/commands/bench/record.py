"""Every figure of a run as one JSON document, raw rounds included."""

import json
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from edgespec.commands.bench.measure import Measured
from edgespec.commands.bench.report import Results
from edgespec.errors import EdgeSpecError, SettingError
from edgespec_models.kept_file import write_whole

FORMAT = 1
METHOD = (
    "decode speed: tokens after the first / their seconds; speed-up: ratio of decode speeds on one prompt "
    "and seed, median over repeats, geometric mean over prompts, 95 % interval by Student's t on logarithms, "
    "one value a prompt; lines of a unit in random order, every generation with empty caches"
)


def document(found: Results, measured: Measured, about: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the document. about: machine, versions, date, command, models, settings."""
    return {
        "format": FORMAT,
        **about,
        "method": METHOD,
        "run": {
            "planned": measured.planned,
            "finished": measured.finished,
            "seconds": measured.seconds,
            "interrupted": measured.cancelled,
            "troubles": measured.troubles,
            "cores_busy_with_others": measured.others,
        },
        "lines": [asdict(summary) for summary in found.summaries],
        "speedup_by_kind": {
            kind: {mode: asdict(ratio) for mode, ratio in of.items()} for kind, of in found.by_kind.items()
        },
        "over_peer_default": {mode: asdict(ratio) for mode, ratio in found.against_peer},
        "over_best_fixed": [{"whom": whom, **asdict(contest)} for whom, contest in found.contests],
        "samples": [{**asdict(sample), "tok_per_s": sample.tok_per_s} for sample in measured.samples],
    }


def check_writable(flag: str, path: Path) -> None:
    """Raises SettingError if the file could not be written: checked before anything is measured."""
    try:
        if path.is_dir():
            raise IsADirectoryError(0, "it is a folder")
        if path.is_file():
            with path.open("ab"):
                return
        if path.exists():  # opening a pipe waits for a reader; and a device would be replaced by a file
            raise OSError(0, "it is not an ordinary file")
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        why = error.strerror or error
        raise SettingError(f"{flag} {path} cannot be written: {why}; name another place") from None


def write(path: Path, content: Mapping[str, Any]) -> None:
    """Writes the document, whole or not at all. Raises EdgeSpecError."""
    try:
        write_whole(path, json.dumps(content, indent=1, allow_nan=False) + "\n", private=False)
    except OSError as error:
        raise EdgeSpecError(f"{path} was not written: {error.strerror or error}") from None
