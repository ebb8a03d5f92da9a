"""Every architecture that llama.cpp writes text with, through the engine: texts are those of plain decoding.

    EDGESPEC_TEST_PEER=BUILD/bin/llama-server python -m pytest tests/test_architectures.py -m slow -s

llama.cpp's own tests/test-llama-archs.cpp writes a tiny model of each. It is compiled here against the build
that the server belongs to: one of the same source as llama-cpp-python's, with shared libraries.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import test_heads
import tiny_gguf
import tiny_heads
from test_rpc import lent

PEER = os.environ.get("EDGESPEC_TEST_PEER")
LIBRARIES = ("llama-common", "llama", "ggml", "ggml-base")
DRAFT, SEED = "llama-moe", "1"
LONGEST_S = 300.0  # for one architecture
COMBINED = ("deepseek2", "glm4moe", "gpt-oss", "kimi-linear", "lfm2moe", "qwen2moe", "qwen3moe", "qwen3next")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The files that llama.cpp's generator writes."""
    if not PEER:
        pytest.skip("EDGESPEC_TEST_PEER names no llama-server")
    compiler, bin_ = shutil.which("c++"), Path(PEER).resolve().parent
    cache = bin_.parent / "CMakeCache.txt"
    home = re.search(r"^CMAKE_HOME_DIRECTORY:\w+=(.+)$", cache.read_text(), re.M) if cache.exists() else None
    if not compiler or not home or not (bin_ / "libllama-common.so").exists():
        pytest.skip("EDGESPEC_TEST_PEER is not in a build with shared libraries, or there is no compiler")
    source, folder = Path(home[1]), tmp_path_factory.mktemp("architectures")
    program = folder / "write-models"
    includes = [f"-I{source / name}" for name in ("include", "ggml/include", "common", "src", "vendor")]
    linked = [f"-L{bin_}", *(f"-l{name}" for name in LIBRARIES), f"-Wl,-rpath,{bin_}"]
    written = source / "tests" / "test-llama-archs.cpp"
    build = [compiler, "-O1", "-std=c++17", *includes, str(written), "-o", str(program), *linked]
    subprocess.run(build, check=True, capture_output=True, timeout=600)
    out = folder / "models"
    out.mkdir()
    command = [str(program), "-o", str(out), "-s", SEED]
    subprocess.run(command, check=True, capture_output=True, timeout=600)
    return sorted(out.glob("*.gguf"))


def examined(target: Path, *machines: str, draft: Path | None = None) -> dict[str, object]:
    """Returns what `architectures.py` says of a file; of how it is placed, with machines that lend."""
    command = [sys.executable, str(Path(__file__).with_name("architectures.py")), str(target)]
    command += [str(draft or target.with_name(f"{DRAFT}.gguf")), *machines]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_S)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [""]
        return {"wrong": [f"it ended with {done.returncode}: {last[0]}"]}
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
def test_every_architecture_says_what_it_says_without_guesses(
    models: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """CogVLM's first token depended on what was cached, and GLM 5 was refused as damaged."""
    with ThreadPoolExecutor(2) as pool:
        found = {path.stem: one for path, one in zip(models, pool.map(examined, models), strict=True)}
    with capsys.disabled():
        print()
        for name, one in found.items():
            answer = one.get("refused") or one["wrong"] or f"{one['drafted']} guesses, all texts right"
            print(f"{name:24} {one.get('memory', ''):20} {answer}")
    assert len(found) > 100
    assert not {name: one["wrong"] for name, one in found.items() if one.get("wrong")}
    refused = {name: one["refused"] for name, one in found.items() if not one.get("right", True)}
    assert not refused, "though they write text"


@pytest.mark.slow
def test_every_mixture_says_the_same_with_its_experts_here_and_the_rest_elsewhere(
    models: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """A machine of --rpc stands in for a card. What it was planned to hold is what it holds."""
    with lent() as machine:
        found = {path.stem: examined(path, machine.address) for path in models if "moe" in path.stem}
    with capsys.disabled():
        print()
        for name, one in found.items():
            print(f"{name:24} {one.get('experts', '')} {one.get('refused') or one['wrong'] or 'right'}")
    mixtures = [name for name, one in found.items() if one.get("experts")]
    assert len(mixtures) >= 6
    assert not {name: one["wrong"] for name, one in found.items() if one.get("wrong")}


@pytest.fixture(scope="module")
def machines() -> Iterator[tuple[str, str]]:
    with lent() as one, lent() as two:
        yield one.address, two.address


@pytest.mark.slow
@pytest.mark.parametrize("name", COMBINED)
def test_mixtures_say_the_same_in_every_combination(
    name: str, models: list[Path], machines: tuple[str, str]
) -> None:
    """Experts or attention here and the rest on one machine or two, one slot or three, a draft, caches in f16
    and q8_0; attention, windows, latent attention and hybrid memories."""
    (target,) = (path for path in models if path.stem == f"{name}-moe")
    found = examined(target, *machines)
    assert found["wrong"] == [] and found["combinations"] == 24


def eagle(folder: Path) -> test_heads.Files:
    """Writes a mixture, and a head beside it."""
    return tiny_gguf.write_experts(folder / "m.gguf", layers=4, n_head=2, n_kv=1), tiny_heads.write_eagle(
        folder / "h.gguf"
    )


@pytest.mark.slow
@pytest.mark.parametrize("write", [test_heads.experts, test_heads.hybrid, eagle])
def test_targets_with_heads_say_the_same_in_every_combination(
    write: Callable[[Path], test_heads.Files], machines: tuple[str, str], tmp_path: Path
) -> None:
    """MTP blocks in the file of a mixture and of a hybrid, a head beside a mixture.

    With the target on another machine, that head ended the engine: it reads the target's output matrix.
    """
    target, head = write(tmp_path)
    found = examined(target, *machines, draft=head or target)
    assert found["wrong"] == [] and found["combinations"] == 24
