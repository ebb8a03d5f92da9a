"""What a model's file is called where users read it: the embedded ones by what they are."""

from pathlib import Path

from edgespec_models import tiny


def shown_name(path: Path) -> str:
    """Returns a file's name, or what it is to a user if it is one of the embedded pair's."""
    if path == tiny.target_path():
        return "the embedded pair"
    if path == tiny.draft_path():
        return "its draft"
    return path.name
