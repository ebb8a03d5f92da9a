"""Does the C++ compiler keep what ggml writes into a tile's configuration? Tried, not looked up.

GCC before 12.4 and 13.3 tells its optimiser that `ldtilecfg` (AMX) reads 8 of the 64 bytes, so it drops
stores, and llama.cpp crashes or computes wrong numbers. The probe compiles those lines to assembly
with the flags of the build, puts a copy of the 64 bytes in the place of the instruction, and looks at what
it would have read. So it tests the compiler on processors without AMX too.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

NO_AMX = "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"  # all three: with the first alone ggml does not compile
BUILD_FLAGS = ("-O3", "-DNDEBUG", "-std=gnu++17", "-fPIC", "-march=native")  # as ggml is built
OWN_FLAGS = re.compile(r"CMAKE_C(XX)?_FLAGS|GGML_NATIVE|GGML_AMX|GGML_CPU_ALL_VARIANTS")

SOURCE = r"""
#include <cstdint>
#include <cstdio>
#include <cstring>
struct tile_config_t {
    uint8_t palette_id = 0;
    uint8_t start_row = 0;
    uint8_t reserved_0[14] = {0};
    uint16_t colsb[16] = {0};
    uint8_t rows[16] = {0};
};
extern "C" { unsigned char seen[64]; uint64_t kept[2]; }
#if defined(__AMX_TILE__)
#include <immintrin.h>
static const int ROWS[8] = {8, 8, 16, 16, 16, 16, 16, 16}, COLSB[8] = {64, 64, 32, 32, 64, 64, 64, 64};
__attribute__((noinline)) void configure(void) {
    static thread_local bool done = false;
    if (done) {
        return;
    }
    alignas(64) tile_config_t tc = {};
    tc.palette_id = 1;
    tc.start_row = 0;
    tc.rows[0] = 8;   tc.colsb[0] = 64;
    tc.rows[1] = 8;   tc.colsb[1] = 64;
    tc.rows[2] = 16;  tc.colsb[2] = 32;
    tc.rows[3] = 16;  tc.colsb[3] = 32;
    tc.rows[4] = 16;  tc.colsb[4] = 64;
    tc.rows[5] = 16;  tc.colsb[5] = 64;
    tc.rows[6] = 16;  tc.colsb[6] = 64;
    tc.rows[7] = 16;  tc.colsb[7] = 64;
    _tile_loadconfig(&tc);
    done = true;
}
int main() {
    configure();
    volatile unsigned char *read = seen;
    if (read[0] != 1) return 1;
    for (int i = 0; i < 8; ++i) {
        if (read[16 + 2 * i] != COLSB[i] || read[17 + 2 * i] != 0 || read[48 + i] != ROWS[i]) return 1;
    }
    return 0;
}
#else
int main() { return 0; }
#endif
"""
LOAD = re.compile(r"^\s*\{?v?ldtilecfg[ \t]+(?P<where>[^#\n;]+)", re.MULTILINE)


def flags_needed(env: Mapping[str, str], *, build_flags: Sequence[str] = BUILD_FLAGS) -> str:
    """Return the compiler flags without which llama.cpp would be compiled wrong: "" if none are needed.

    Flags set by the user are left alone. A compiler that fails over the probe is left to the
    build, whose log has its messages.
    """
    if sets_flags(env):
        return ""
    return "" if keeps_stores(shlex.split(env.get("CXX") or "c++"), build_flags) else NO_AMX


def sets_flags(env: Mapping[str, str]) -> bool:
    """Tell whether the user has set flags for compiling llama.cpp."""
    said = env.get("CMAKE_ARGS", "")
    return bool(env.get("CFLAGS") or env.get("CXXFLAGS") or OWN_FLAGS.search(said))


def portable_options(env: Mapping[str, str]) -> str:
    """Return CMake options for a build that is not for this processor alone, and that it can run.

    Without GGML_NATIVE ggml is compiled for AVX2 and its contemporaries, which old processors lack.
    """
    command = [*shlex.split(env.get("CXX") or "c++"), "-march=native", "-dM", "-E", "-x", "c++", os.devnull]
    try:
        macros = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError):
        macros = ""
    usual = {"AVX": "AVX", "AVX2": "AVX2", "BMI2": "BMI2", "FMA": "FMA", "F16C": "F16C", "SSE42": "SSE4_2"}
    lacking = [option for option, macro in usual.items() if f"#define __{macro}__ " not in macros]
    if "#define __x86_64__ " not in macros:
        lacking = []
    return " ".join(["-DGGML_NATIVE=OFF", *(f"-DGGML_{option}=OFF" for option in lacking)])


def keeps_stores(compiler: Sequence[str], flags: Sequence[str]) -> bool:
    """Compile the probe and run it; False only where stores were lost."""
    with tempfile.TemporaryDirectory() as folder:
        source, assembly, program = (Path(folder, f"probe{end}") for end in (".cpp", ".s", ""))
        source.write_text(SOURCE, encoding="utf-8")
        try:
            _run([*compiler, *flags, "-S", str(source), "-o", str(assembly)])
            text = assembly.read_text(encoding="utf-8")
            if not LOAD.search(text):  # built without AMX
                return True
            assembly.write_text(LOAD.sub(_copy, text), encoding="utf-8")
            _run([*compiler, str(assembly), "-o", str(program)])
            return subprocess.run([str(program)], capture_output=True, timeout=60).returncode != 1
        except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
            return True


def _run(command: Sequence[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=60)


def _copy(load: re.Match[str]) -> str:
    """Return instructions that keep the 64 bytes which `ldtilecfg` would read, and change nothing else."""
    into, spare = "%rax", "%rcx"
    lines = [
        f"movq {into}, kept(%rip)",
        f"movq {spare}, kept+8(%rip)",
        f"leaq {load['where'].strip()}, {into}",
        *(
            line
            for at in range(0, 64, 8)
            for line in (f"movq {at}({into}), {spare}", f"movq {spare}, seen+{at}(%rip)")
        ),
        f"movq kept(%rip), {into}",
        f"movq kept+8(%rip), {spare}",
    ]
    return "\n\t" + "\n\t".join(lines)
