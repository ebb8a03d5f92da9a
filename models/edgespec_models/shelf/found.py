"""GGUF files that other programs have downloaded: LM Studio, Ollama, llama.cpp, and users of the hub's cache.

They are found where those programs put them and used where they are: nothing is copied, moved or deleted.
"""

import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from edgespec_models.gguf.facts import why_not_usable
from edgespec_models.gguf.header import HeaderError, read_file, split_names
from edgespec_models.gguf.vocabulary import Vocabulary, mismatch, vocabulary_of

LARGEST_SHARE = 0.3  # of the target's size
_DIGEST = re.compile(r"\w+[:-]\w+")  # else a manifest could lead out of Ollama's folder
_NO_MODEL = re.compile(r"mmproj|imatrix|^mtp-", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class FoundModel:
    """A model on this machine."""

    program: str  # whose it is
    label: str  # that program's name for it
    paths: tuple[Path, ...]  # all parts, in order
    size: int  # bytes
    projector: Path | None = None  # if the program says so
    also: tuple[str, ...] = ()  # its other names for the same file


FoundPair = tuple[FoundModel, FoundModel]  # a target, and a draft that fits it


def find_models(environment: Mapping[str, str] | None = None, home: Path | None = None) -> list[FoundModel]:
    """Returns the models of other programs, each file once. environment, home: by default the user's."""
    environment = os.environ if environment is None else environment
    home = Path.home() if home is None else home
    found: dict[str, FoundModel] = {}
    for model in (
        *_lm_studio(home),
        *_ollama(environment, home),
        *_llama_cpp(environment, home),
        *_hub_cache(environment, home),
    ):
        real = os.path.realpath(model.paths[0])
        first = found.setdefault(real, model)
        if model.label != first.label:
            found[real] = replace(first, also=(*first.also, model.label))
    return list(found.values())


def find_pairs(models: Iterable[FoundModel]) -> tuple[list[FoundPair], dict[str, str]]:
    """Returns which of the models fit as target and draft, and why the unusable ones do not (by label).

    Each target gets its best draft: the smallest that fits and has at most 0.3 of its size.
    """
    known: list[tuple[FoundModel, Vocabulary]] = []
    useless = {}
    for model in models:
        try:
            header = read_file(model.paths[0])
            reason = why_not_usable(header)
            if reason is None:
                known.append((model, vocabulary_of(header)))
        except HeaderError as error:
            reason = str(error)
        if reason:
            useless[model.label] = reason
    known.sort(key=lambda entry: entry[0].size)
    pairs = []
    for target, words in known:
        for draft, other in known:
            if draft.size > LARGEST_SHARE * target.size:
                break
            if mismatch(words, other) is None:
                pairs.append((target, draft))
                break
    return pairs, useless


def _ggufs(folder: Path, program: str) -> Iterator[FoundModel]:
    """Yields the models below a folder; all parts of a split model."""
    if not folder.is_dir():
        return
    for path in sorted(folder.rglob("*.gguf")):
        if _NO_MODEL.search(path.name) or not path.is_file():
            continue
        parts = [path.with_name(name) for name in split_names(path.name)]
        if path != parts[0] or not all(part.is_file() for part in parts):
            continue
        name = path.relative_to(folder).as_posix()
        yield FoundModel(program, name, tuple(parts), sum(part.stat().st_size for part in parts))


def _lm_studio(home: Path) -> Iterator[FoundModel]:
    pointer = home / ".lmstudio-home-pointer"
    folders = [home / ".lmstudio" / "models", home / ".cache" / "lm-studio" / "models"]
    try:
        folders.insert(0, Path(pointer.read_text(encoding="utf-8").strip()) / "models")
    except (OSError, UnicodeDecodeError):
        pass
    for folder in folders:
        yield from _ggufs(folder, "LM Studio")


def _ollama(environment: Mapping[str, str], home: Path) -> Iterator[FoundModel]:
    named = environment.get("OLLAMA_MODELS")
    folders = [Path(named)] if named else [home / ".ollama/models", Path("/usr/share/ollama/.ollama/models")]
    for folder in folders:
        manifests = folder / "manifests"
        try:
            files = sorted(path for path in manifests.rglob("*") if path.is_file())
        except OSError:
            continue
        for manifest in files:
            blob = _ollama_blob(folder, manifest)
            if blob:
                label = _ollama_label(manifest.relative_to(manifests).parts)
                projector = _ollama_blob(folder, manifest, "projector")
                yield FoundModel("Ollama", label, (blob,), blob.stat().st_size, projector)


def _ollama_label(parts: tuple[str, ...]) -> str:
    """Returns Ollama's name for a manifest: without its registry and its library, if these are the usual."""
    *where, tag = parts
    for usual in ("registry.ollama.ai", "library"):
        if where[:1] == [usual] and len(where) > 1:
            where = where[1:]
    return f"{'/'.join(where)}:{tag}"


def _ollama_blob(folder: Path, manifest: Path, what: str = "model") -> Path | None:
    """Returns what a manifest of Ollama names, if it is there: its "model", or its "projector"."""
    try:
        layers = json.loads(manifest.read_text(encoding="utf-8"))["layers"]
        digests = [x["digest"] for x in layers if x["mediaType"] == f"application/vnd.ollama.image.{what}"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    for digest in digests:
        blob = folder / "blobs" / str(digest).replace(":", "-")
        if _DIGEST.fullmatch(str(digest)) and blob.is_file():
            return blob
    return None


def _llama_cpp(environment: Mapping[str, str], home: Path) -> Iterator[FoundModel]:
    if environment.get("LLAMA_CACHE"):
        folder = Path(environment["LLAMA_CACHE"])
    elif sys.platform == "darwin":
        folder = home / "Library/Caches/llama.cpp"
    elif sys.platform == "win32":
        folder = Path(environment.get("LOCALAPPDATA") or home / "AppData/Local") / "llama.cpp"
    else:
        folder = Path(environment.get("XDG_CACHE_HOME") or home / ".cache") / "llama.cpp"
    yield from _ggufs(folder, "llama.cpp")


def hub_folder(environment: Mapping[str, str], home: Path) -> Path:
    """Returns the hub's cache."""
    base = Path(environment.get("XDG_CACHE_HOME") or home / ".cache") / "huggingface"
    return Path(environment.get("HF_HUB_CACHE") or Path(environment.get("HF_HOME") or base) / "hub")


def unfinished_downloads() -> list[tuple[str, Path]]:
    """Returns what killed downloads left in the hub's cache: repository and file. It can be deleted."""
    from filelock import FileLock, Timeout  # slow to import, and each start would

    hub = hub_folder(os.environ, Path.home())
    found = []
    for path in sorted(hub.glob("models--*/blobs/*.incomplete")):
        lock = hub / ".locks" / path.parent.parent.name / f"{path.name.partition('.')[0]}.lock"
        lock.parent.mkdir(parents=True, exist_ok=True)
        with suppress(Timeout), FileLock(lock, blocking=False):  # else a program downloads it
            found.append((_repository(path.parent.parent), path))
    return found


def _repository(folder: Path) -> str:
    return folder.name.removeprefix("models--").replace("--", "/", 1)


def _hub_cache(environment: Mapping[str, str], home: Path) -> Iterator[FoundModel]:
    hub = hub_folder(environment, home)
    for snapshot in sorted(hub.glob("models--*/snapshots/*")):
        repo = _repository(snapshot.parent.parent)
        for model in _ggufs(snapshot, "hub cache"):
            yield FoundModel("hub cache", f"{repo}:{model.label}", model.paths, model.size)
