"""Asking llama.cpp how much memory a model would take, without loading it.

The question goes to a child process, because llama.cpp ends its process on files that it does not like. The
child is kept for the questions that follow: choosing layers and context takes several. Starting it takes
half a second, an answer a few milliseconds to a tenth of a second.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edgespec.errors import EngineDiedError, ModelFileError, ModelUnsupportedError, SettingError
from edgespec.pairs.settings import KvType
from edgespec.system.isolate import cause_of_death
from edgespec_models.fit.need import Device, Need, Parts

_ERRORS = {kind.__name__: kind for kind in (ModelFileError, ModelUnsupportedError, SettingError)}


@dataclass(frozen=True, slots=True)
class Question:
    """One model with one context, as `ContextSettings` has it."""

    path: str
    n_gpu_layers: int
    n_ctx: int
    cells: int
    n_seq: int
    n_rows: int
    kv_type: KvType
    flash_attention: bool | None = None


class MemoryOracle:
    """Knows what llama.cpp would take. Use it in a `with`: the child ends with it."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="edgespec-")
        self._noise = Path(self._folder.name) / "stderr"
        self._known: dict[Question, Need] = {}
        self._child: subprocess.Popen[str] | None = None

    def __enter__(self) -> MemoryOracle:
        return self

    def __exit__(self, *_: object) -> None:
        if self._child:
            self._child.kill()
            self._child.communicate()
        self._folder.cleanup()

    def need(self, question: Question) -> Need:
        """Returns what the model would take.

        Raises ModelFileError or ModelUnsupportedError as loading it would, EngineDiedError where llama.cpp
        ended the child.
        """
        if question not in self._known:
            said = self._ask(asdict(question))
            devices = {name: Parts(**parts) for name, parts in said["devices"].items()}
            self._known[question] = Need(devices, said["n_layers"])
        return self._known[question]

    def devices(self) -> list[Device]:
        """Returns the graphics cards that this build of llama.cpp can use."""
        return [Device(**device) for device in self._ask({"devices": True})["devices"]]

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        child = self._child = self._child or self._started()
        assert child.stdin and child.stdout
        try:
            child.stdin.write(json.dumps(question) + "\n")
            child.stdin.flush()
            line = child.stdout.readline()
        except OSError:
            line = ""
        if not line:
            self._child = None
            child.communicate()
            code = child.returncode
            cause = cause_of_death(code, self._noise.read_text(errors="replace"))
            raise EngineDiedError(cause or f"the process that asks llama.cpp ended with code {code}")
        said: dict[str, Any] = json.loads(line)
        if "error" in said:
            raise _ERRORS[said["error"]](said["message"])
        return said

    def _started(self) -> subprocess.Popen[str]:
        with open(self._noise, "w") as noise:
            return subprocess.Popen(
                [sys.executable, "-P", "-m", "edgespec.memory.answer"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=noise, text=True, encoding="utf-8",
                env={**os.environ, "EDGESPEC_LOG": ""},
            )  # fmt: skip
