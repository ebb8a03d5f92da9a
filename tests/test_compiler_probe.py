"""make tries the compiler before llama.cpp is built: one that drops stores is found, whatever its version."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / ".make"))
import compiler_probe  # noqa: E402

CXX = shutil.which("c++")
pytestmark = pytest.mark.skipif(
    CXX is None or platform.machine() not in ("x86_64", "AMD64") or os.name == "nt",
    reason="the probe is of C++ compilers for x86-64",
)
AMX = [
    *compiler_probe.BUILD_FLAGS[:-1],
    "-mamx-tile",
]  # runs everywhere: nothing else of the processor is used
# what GCC's own header should say: all 64 bytes are read
SOUND = """#include <immintrin.h>
#undef _tile_loadconfig
#define _tile_loadconfig(c) __asm__ volatile("ldtilecfg %X0" :: "m"(*(const char (*)[64])(c)))
"""
# and what it says in GCC 12.2
BROKEN = SOUND.replace("*(const char (*)[64])(c)", "*(const void *const *)(c)")


def compiler(folder: Path, header: str) -> Path:
    """Returns a `c++` that is the machine's own, with another way to load a tile's configuration."""
    folder.mkdir()
    (folder / "tiles.h").write_text(header)
    path = folder / "c++"
    include = f'case $* in *.cpp*) set -- -include {folder}/tiles.h "$@";; esac'
    path.write_text(f'#!/bin/sh\n{include}\nexec {CXX} "$@"\n')
    path.chmod(0o755)
    try:
        subprocess.run(
            [path, *AMX, "-x", "c++", "-fsyntax-only", os.devnull], check=True, capture_output=True
        )
    except subprocess.CalledProcessError:
        pytest.skip("this compiler knows no AMX")
    return path


@pytest.mark.slow
def test_a_compiler_that_drops_the_stores_is_found_and_one_that_keeps_them_passes(tmp_path: Path) -> None:
    sound, broken = compiler(tmp_path / "sound", SOUND), compiler(tmp_path / "broken", BROKEN)
    assert compiler_probe.keeps_stores([str(sound)], AMX)
    assert not compiler_probe.keeps_stores([str(broken)], AMX)
    assert compiler_probe.keeps_stores([str(broken)], [*AMX, *compiler_probe.NO_AMX.split()])
    assert compiler_probe.keeps_stores([str(broken)], ["-O0", *AMX[1:]])


def test_the_flags_heal_what_a_build_for_sapphire_rapids_would_break(tmp_path: Path) -> None:
    """As on the machine where the first command of the README ended in SIGSEGV, in PATH like any compiler."""
    broken = compiler(tmp_path / "broken", BROKEN)
    if "avx512f" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("code for Sapphire Rapids cannot run here")
    rapids = [*compiler_probe.BUILD_FLAGS[:-1], "-march=sapphirerapids"]
    for env in ({"CXX": str(broken)}, {}):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PATH", f"{broken.parent}{os.pathsep}{os.environ['PATH']}")
            assert compiler_probe.flags_needed(env, build_flags=rapids) == compiler_probe.NO_AMX
    healed = [*rapids, *compiler_probe.NO_AMX.split()]
    assert compiler_probe.flags_needed({"CXX": str(broken)}, build_flags=healed) == ""


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "said", [{"CFLAGS": "-O2"}, {"CXXFLAGS": "-O2"}, {"CMAKE_ARGS": "-DGGML_NATIVE=OFF"}]
)
def test_flags_of_ones_own_are_left_alone(tmp_path: Path, said: dict[str, str]) -> None:
    broken = compiler(tmp_path / "broken", BROKEN)
    assert compiler_probe.flags_needed({"CXX": str(broken)}, build_flags=AMX) == compiler_probe.NO_AMX
    assert compiler_probe.flags_needed({"CXX": str(broken), **said}, build_flags=AMX) == ""


def test_what_make_leaves_out_is_what_the_pages_say_that_it_does() -> None:
    assert f"`{compiler_probe.NO_AMX}`" in (ROOT / "docs" / "install.md").read_text()


def test_a_compiler_that_does_not_run_is_left_to_the_build() -> None:
    assert compiler_probe.flags_needed({"CXX": "no-such-compiler"}) == ""


def test_a_portable_build_asks_for_no_more_than_the_processor_has(tmp_path: Path) -> None:
    old = tmp_path / "c++"
    old.write_text('#!/bin/sh\nprintf "#define __x86_64__ 1\\n#define __AVX__ 1\\n#define __SSE4_2__ 1\\n"\n')
    old.chmod(0o755)
    options = compiler_probe.portable_options({"CXX": str(old)}).split()
    assert options == [
        "-DGGML_NATIVE=OFF", "-DGGML_AVX2=OFF", "-DGGML_BMI2=OFF", "-DGGML_FMA=OFF", "-DGGML_F16C=OFF"
    ]  # fmt: skip
