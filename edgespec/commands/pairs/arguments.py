"""The flags of `edgespec list`, `show`, `rm` and `import`."""

from __future__ import annotations

import argparse

HELP = {
    "list": "the pairs on this machine",
    "show": "all that is known of a pair",
    "rm": "remove a pair, and free what no other uses",
    "import": "use GGUF files that are here already",
}
DESCRIPTION = {
    "list": """Lists the installed pairs with their sizes, when they were used last and how fast they were
here. The one marked * is taken where none is named: the one pulled or imported last.""",
    "show": """Shows where the files of a pair lie, what their headers say, and whether target and draft fit.
For a pair of the catalogue that is not installed, what the catalogue knows.""",
    "rm": """Removes pairs and deletes the files that EdgeSpec downloaded for them, as far as no other pair
uses them. Files that were imported stay where they are.""",
    "import": """Installs a pair of local GGUF files under a name; they stay where they are. With no file it
lists what LM Studio, Ollama, llama.cpp and the hub's cache hold, and which of it fits together.""",
}


def add(name: str, command: argparse.ArgumentParser) -> None:
    """Adds the flags of one of the four commands."""
    if name in ("list", "show"):
        command.add_argument("--json", action="store_true", help="print one JSON object")
    if name == "show":
        command.add_argument("name", metavar="NAME", help="the pair")
    elif name == "rm":
        command.add_argument("names", nargs="*", metavar="NAME", help="the pairs")
        command.add_argument(
            "--unfinished",
            action="store_true",
            help="delete downloads that were interrupted, or that no pair uses any more",
        )
        command.add_argument("--keep-files", action="store_true", help="forget the pair and delete nothing")
    elif name == "import":
        command.add_argument("target", nargs="?", metavar="TARGET", help="a GGUF file, or a listed label")
        draft = command.add_mutually_exclusive_group()
        draft.add_argument("draft", nargs="?", metavar="DRAFT", help="the same for the draft")
        draft.add_argument("--target-only", action="store_true", help="no draft: its text alone guesses")
        command.add_argument("--name", metavar="NAME", help="what to call the pair (default: as the target)")
