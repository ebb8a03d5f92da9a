"""Which file lets a target read pictures and sounds: the projector named, or one next to the target."""

import re
from pathlib import Path

from edgespec.errors import ModelFileError, ModelUnsupportedError
from edgespec_models.gguf.header import Header, HeaderError, read_file

AUTO, NONE = "auto", "none"
PROJECTOR = "clip"  # its architecture


def projector_of(target: Path, asked: str) -> Path | None:
    """Returns the projector's file. asked: its path, "auto" or "none".

    Raises ModelFileError or ModelUnsupportedError for a named one that cannot be it.
    """
    if asked in ("", NONE):
        return None
    if asked == AUTO:
        return _next_to(target)
    path = Path(asked)
    try:
        header = read_file(path)
    except HeaderError as error:
        raise ModelFileError(f"--mmproj: {error}") from None
    if header.architecture != PROJECTOR:
        raise ModelUnsupportedError(
            f"--mmproj: {path.name} is no projector: its name often begins with mmproj"
        )
    return path


def reads_of(header: Header) -> tuple[str, ...]:
    """Returns what a projector reads, in words."""
    kinds = {"pictures": "clip.has_vision_encoder", "sounds": "clip.has_audio_encoder"}
    return tuple(kind for kind, key in kinds.items() if header.flag(key))


def _next_to(target: Path) -> Path | None:
    """Returns the projector in the target's folder that fits it; of several the one named most like it."""
    try:
        width = read_file(target).of_architecture("embedding_length")
        named = [path for path in sorted(target.parent.glob("*.gguf")) if "mmproj" in path.name.lower()]
    except (HeaderError, OSError):
        return None
    fitting = [path for path in named if _fits(path, width)]
    return max(fitting, key=lambda path: _likeness(path, target), default=None)


def _fits(path: Path, width: int | None) -> bool:
    try:
        header = read_file(path)
    except HeaderError:
        return False
    of_rows = [header.number(f"clip.{kind}.projection_dim") for kind in ("vision", "audio")]
    return width is not None and header.architecture == PROJECTOR and width in of_rows


def _likeness(path: Path, target: Path) -> tuple[int, bool]:
    """Returns how many parts of the names are the same; among equals F16 is better than its larger copies."""
    words = [set(re.split(r"[^a-z0-9]+", name.stem.lower())) for name in (path, target)]
    return len(words[0] & words[1]), "f16" in words[0] and "bf16" not in words[0]
