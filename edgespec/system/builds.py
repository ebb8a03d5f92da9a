"""Which build of llama-cpp-python suits a machine, and the exact command that installs it.

Plain PyPI has only the source, which is compiled on installing. The author's index has wheels for some back
ends, versions of CUDA and of Python (README of llama-cpp-python 0.3.36); where there is none, CMAKE_ARGS sets
what to compile. How EdgeSpec itself was installed decides how its environment is changed.
"""

import importlib.util
import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Backend = Literal["CPU", "CUDA", "Metal", "Vulkan", "ROCm"]
VERSION = "0.3.36"
WHEELS = "https://abetlen.github.io/llama-cpp-python/whl/"
CUDA_WHEELS = ((11, 8), (12, 1), (12, 2), (12, 3), (12, 4), (12, 5), (13, 0), (13, 2))
WHEEL_PYTHONS = ((3, 10), (3, 11), (3, 12))  # for which there are CUDA and Metal wheels
CMAKE = {
    "CPU": "-DGGML_NATIVE=on",
    "CUDA": "-DGGML_CUDA=on",
    "Metal": "-DGGML_METAL=on",
    "Vulkan": "-DGGML_VULKAN=on",
    "ROCm": "-DGGML_HIP=on",
}
_LIBRARIES: dict[str, Backend] = {"cuda": "CUDA", "metal": "Metal", "vulkan": "Vulkan", "hip": "ROCm"}
NO_AMX = "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"  # all three: the first alone does not compile
Installer = Literal["pipx", "uv tool", "uv", "pip"]


@dataclass(frozen=True, slots=True)
class Here:
    """What a command must suit."""

    python: tuple[int, int]
    system: str  # as sys.platform has it
    installer: Installer
    executable: str  # of Python
    cuda: tuple[int, int] | None = None  # the newest that the driver can run


def here(cuda: tuple[int, int] | None = None) -> Here:
    """Returns this machine and environment."""
    return Here((sys.version_info[0], sys.version_info[1]), sys.platform, installer(), sys.executable, cuda)


def installer(prefix: Path | None = None) -> Installer:
    """Returns what this environment was made with. prefix: its folder."""
    prefix = prefix or Path(sys.prefix)
    parts = [part.lower() for part in prefix.parts]
    if "pipx" in parts:
        return "pipx"
    if "uv" in parts and "tools" in parts:
        return "uv tool"
    try:
        made_by_uv = "uv = " in (prefix / "pyvenv.cfg").read_text()
    except OSError:
        made_by_uv = False
    return "uv" if made_by_uv else "pip"


def wheel_index(backend: Backend, at: Here) -> str | None:
    """Returns the address of the index with wheels for a back end here; None if there are none."""
    if backend == "CPU":
        return WHEELS + "cpu"
    if backend == "Vulkan":
        return WHEELS + "vulkan" if at.system in ("linux", "win32") else None
    if backend == "ROCm":
        names = {"linux": "rocm72", "win32": "hip-radeon"}
        return WHEELS + names[at.system] if at.system in names else None
    if at.python not in WHEEL_PYTHONS:
        return None
    if backend == "Metal":
        return WHEELS + "metal" if at.system == "darwin" else None
    fitting = [version for version in CUDA_WHEELS if at.cuda and version <= at.cuda]
    return WHEELS + "cu{}{}".format(*fitting[-1]) if fitting and at.system != "darwin" else None


def command(backend: Backend, at: Here, *, compiled: bool = False, native: bool = True) -> str:
    """Returns the command that puts a build for `backend` into the environment, whatever is there now.

    compiled: from source, for this very machine, even if there are wheels. native: for this processor
    only, if it is compiled.
    """
    index = None if compiled else wheel_index(backend, at)
    if index:
        return _install(at, ["--extra-index-url", index, "--only-binary", "llama-cpp-python"])
    arguments = ["--no-binary", "llama-cpp-python"]
    options = f"-DGGML_RPC=on {CMAKE[backend]}"
    if not native:
        options = f"{options.replace(' -DGGML_NATIVE=on', '')} -DGGML_NATIVE=off"
    if at.system == "win32":
        return f'$env:CMAKE_ARGS = "{options}"; {_install(at, arguments)}'
    return f'CMAKE_ARGS="{options}" {_install(at, arguments)}'


def mending(at: Here, *, cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Returns the command that compiles the same build without what a compiler may break.

    That is AMX if the processor has it (GCC before 12.4 and 13.3 drops stores of a tile's configuration),
    else all that is special to this processor.
    """
    try:
        amx = "amx_tile" in cpuinfo.read_text(encoding="utf-8")
    except OSError:
        amx = False
    backend = built_for()
    if amx and at.system != "win32":
        return f'CFLAGS="{NO_AMX}" CXXFLAGS="{NO_AMX}" {command(backend, at, compiled=True)}'
    return command(backend, at, compiled=True, native=False)


def whole_build(at: Here) -> str:
    """Returns the command that compiles the same build whole: wheels lack RPC, some builds pictures."""
    return command(built_for(), at, compiled=True)


def built_for() -> Backend:
    """Returns the back end that the installed llama.cpp was built for, by its libraries."""
    folder = library_folder()
    return next((name for key, name in _LIBRARIES.items() if any(folder.glob(f"*ggml-{key}*"))), "CPU")


def reads_media() -> bool:
    """Returns whether the installed llama.cpp has the part that reads pictures and sounds."""
    return any(library_folder().glob("*mtmd*"))


def library_folder() -> Path:
    """Returns where llama_cpp takes llama.cpp's libraries from."""
    if elsewhere := os.environ.get("LLAMA_CPP_LIB_PATH"):
        return Path(elsewhere)
    spec = importlib.util.find_spec("llama_cpp")
    return Path(spec.origin).parent / "lib" if spec and spec.origin else Path()


def _install(at: Here, arguments: list[str]) -> str:
    package = f"llama-cpp-python=={VERSION}"
    if at.installer in ("uv", "uv tool"):
        uv = ["uv", "pip", "install", "--python", at.executable, "--reinstall-package", "llama-cpp-python"]
        return _line([*uv, "--no-cache", *arguments, package], at)
    pip = ["pipx", "runpip", "edgespec"] if at.installer == "pipx" else [at.executable, "-m", "pip"]
    return _line(
        [*pip, "install", "--force-reinstall", "--no-deps", "--no-cache-dir", *arguments, package], at
    )


def _line(words: list[str], at: Here) -> str:
    if at.system == "win32":
        return " ".join(f'"{word}"' if " " in word else word for word in words)
    home = os.path.expanduser("~")
    return " ".join(shlex.quote(word) for word in words).replace(f"{home}/", "~/")
