"""Which build of llama.cpp is installed, by its files."""

import importlib.util
import os
from pathlib import Path
from typing import Literal

Backend = Literal["CPU", "CUDA", "Metal", "Vulkan", "ROCm"]
VERSION = "0.3.36"  # of llama-cpp-python
_LIBRARIES: dict[str, Backend] = {"cuda": "CUDA", "metal": "Metal", "vulkan": "Vulkan", "hip": "ROCm"}
REBUILD = "docs/install.md#changing-the-build-of-an-installation"
MENDING = "docs/install.md#does-it-compute-right"


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
