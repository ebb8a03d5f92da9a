"""`edgespec import`: pairs of files that are already on this machine, used where they are."""

import argparse
import os
import sys
import time
from pathlib import Path

from edgespec.commands.flag_table import add_flags
from edgespec.commands.table import table
from edgespec.errors import ModelFileError
from edgespec.pairs.check import check_pair, header_errors
from edgespec.pairs.found import name_of
from edgespec.pairs.projector import AUTO, projector_of
from edgespec.pairs.store import open_store, store_errors
from edgespec_models.gguf.facts import why_not_usable
from edgespec_models.gguf.header import read_file, split_names
from edgespec_models.shelf.found import FoundModel, find_models, find_pairs
from edgespec_models.shelf.sizes import size_text
from edgespec_models.shelf.store import InstalledModel, InstalledPair, Store, check_name

DESCRIPTION = """Installs local GGUF files as a pair; the files stay where they are. Without a file, it lists
the models that LM Studio, Ollama, llama.cpp and the hub's cache hold, and which of them fit together."""


def add(command: argparse.ArgumentParser) -> None:
    """Adds the flags."""
    command.add_argument("target", nargs="?", metavar="TARGET", help="a GGUF file, or a label from the list")
    draft = command.add_mutually_exclusive_group()
    draft.add_argument("draft", nargs="?", metavar="DRAFT", help="the draft, likewise")
    add_flags(draft, {"--target-only": "no draft; guesses come from the text itself"})
    add_flags(command, {"--name NAME": "name of the pair (default: the target's)"})


def run(arguments: argparse.Namespace) -> int:
    """Installs the pair, or lists what could be; returns the exit code."""
    with store_errors():
        store = open_store()
        return _list_found() if arguments.target is None else _import_pair(store, arguments)


def _list_found() -> int:
    """Lists the models of other programs, and the pairs among them with the command for each."""
    models = find_models()
    if not models:
        print(
            "LM Studio, Ollama, llama.cpp and the hub's cache hold no models: name your files, as in "
            "`edgespec import big.gguf small.gguf`"
        )
        return 0
    pairs, useless = find_pairs(models)
    rows = [("program", "model", "size", "")]
    for model in models:
        rows.append((model.program, model.label, size_text(model.size), useless.get(model.label, "")))
    print("\n".join(table(rows)))
    print()
    for target, draft in pairs:
        print(f"fits: edgespec import '{target.label}' '{draft.label}'")
    if not pairs:
        print("no two of them fit as target and draft; one alone works: edgespec import LABEL --target-only")
    return 0


def _import_pair(store: Store, arguments: argparse.Namespace) -> int:
    """Installs the pair that the flags name; returns the exit code."""
    found: dict[str, FoundModel] = {}
    for model in find_models():
        for label in (model.label, *model.also):
            found.setdefault(label, model)
    target = _model(arguments.target, found)
    draft = _model(arguments.draft, found) if arguments.draft else None
    if draft is None and not arguments.target_only:
        draft = _fitting(target, list(dict.fromkeys(found.values())))
    name = check_name(arguments.name or name_of(arguments.target))
    if draft:
        check_pair(target.path, draft.path)
    else:
        _check_alone(target.path)
    known = found[arguments.target].projector if arguments.target in found else None
    projector = _projector(known or projector_of(target.path, AUTO))
    pair = InstalledPair(name, target, draft, "imported", time.time(), projector=projector)
    store.add(pair)
    with_draft = f" with draft {draft.path.name}" if draft else " without a draft"
    with_draft += f" and projector {projector.path.name}" if projector else ""
    print(f"imported {target.path.name}{with_draft} as {name}; next: edgespec chat", file=sys.stderr)
    return 0


def _model(named: str, found: dict[str, FoundModel]) -> InstalledModel:
    if named in found:
        paths = found[named].paths
    else:
        path = Path(os.path.expanduser(named))  # an unknown user is a name like others
        paths = tuple(path.with_name(part) for part in split_names(path.name))
        for part in paths:
            if not part.is_file():
                raise ModelFileError(
                    f"there is no file {part}: check the path; `edgespec import` alone lists what was found"
                )
    paths = tuple(path.absolute() for path in paths)  # not resolved: a name in the hub's cache says more
    return InstalledModel(tuple(map(str, paths)), sum(path.stat().st_size for path in paths))


def _projector(path: Path | None) -> InstalledModel | None:
    return InstalledModel((str(path.absolute()),), path.stat().st_size) if path else None


def _fitting(target: InstalledModel, found: list[FoundModel]) -> InstalledModel | None:
    """Returns the draft among the found models that fits a target best, and prints which."""
    own = FoundModel("", target.paths[0], tuple(map(Path, target.paths)), target.size)
    others = [model for model in found if model.paths[0].resolve() != target.path.resolve()]
    pairs, _ = find_pairs([own, *others])
    for large, draft in pairs:
        if large is own:
            print(f"{draft.label} of {draft.program} fits as its draft", file=sys.stderr)
            return InstalledModel(tuple(map(str, draft.paths)), draft.size)
    return None


def _check_alone(path: Path) -> None:
    with header_errors():
        reason = why_not_usable(read_file(path))
    if reason:
        raise ModelFileError(reason)
