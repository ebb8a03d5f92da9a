"""Finds what reads pictures and sounds for a target."""

from contextlib import ExitStack
from pathlib import Path

from edgespec.engine.media_reader import SHIPPED_EYE, MediaReader
from edgespec.errors import ModelUnsupportedError
from edgespec.llama.projector import mtmd_cpp
from edgespec.pairs.projector import AUTO, projector_of
from edgespec.pairs.settings import PairSettings
from edgespec.system.builds import reads_media
from edgespec_models import tiny


def open_media_reader(
    opened: ExitStack, target: Path, settings: PairSettings
) -> tuple[MediaReader | None, str]:
    """Returns what reads pictures for a target, if it has a projector, or why a found one cannot be used.

    Loaded before the target, for it takes memory, too; the shipped one with the first picture, as few demos
    have any.
    """
    projector = projector_of(target, settings.mmproj)
    shipped = projector == tiny.projector_path()
    if projector is None or (shipped and not reads_media()):
        return None, ""
    try:
        if not shipped:
            mtmd_cpp()
        on_gpu, known = settings.n_gpu_layers != 0 and not shipped, SHIPPED_EYE if shipped else None
        reader = MediaReader(projector, target, on_gpu=on_gpu, known=known)
    except ModelUnsupportedError as error:
        if settings.mmproj != AUTO:
            raise
        return None, f"pictures cannot be read: {error}"
    return opened.enter_context(reader), ""
