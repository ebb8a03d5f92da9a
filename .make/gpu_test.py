"""Runs the tests of graphics cards on a device in software: Mesa's lavapipe, by llama.cpp's Vulkan back end.

It says nothing about speed and everything about whether it works. llama-cpp-python is built once, in
`build/vulkan` (GPU_BUILD names another folder) and beside .venv's own, which stays as it is. Arguments are
pytest's. VK_ICD_FILENAMES, VK_DRIVER_FILES or GGML_VK_VISIBLE_DEVICES choose the device: a real
card takes the same tests.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from compiler_probe import flags_needed
from obstacles import Obstacle, check_compilers, check_space, explain
from set_up import LLAMA, LOG, OPTIONS, ROOT, clock, cores, pinned, pip, pip_environment, say, tail

TESTS = ("tests/card",)
OWN_PROCESS = ("-n", "1")  # a driver that crashes its process ends one test, and the others go on
BUILT_WITH = f"{OPTIONS} -DGGML_VULKAN=ON"
INSTALL = "install what it needs (Debian, Ubuntu: sudo apt install libvulkan-dev glslc spirv-headers)"
DRIVER = "install it (Debian, Ubuntu: sudo apt install mesa-vulkan-drivers), and run it again"
HEADERS = "#include <vulkan/vulkan.h>\n#include <spirv/unified1/spirv.h>\n"
CHOOSES = ("VK_ICD_FILENAMES", "VK_DRIVER_FILES", "GGML_VK_VISIBLE_DEVICES")
DRIVERS = (Path("/usr/share/vulkan/icd.d"), Path("/usr/local/share/vulkan/icd.d"), Path("/etc/vulkan/icd.d"))
BACK_END = "vendor/llama.cpp/ggml/src/ggml-vulkan"
PLAIN = "    vk::InstanceCreateInfo instance_create_info({}, &app_info, layers, extensions);"
WHOLE_SET = """\
        std::array<vk::DescriptorBufferInfo, MAX_PARAMETER_COUNT> every;
        every.fill(*descriptor_buffer_infos.begin());
        std::copy(descriptor_buffer_infos.begin(), descriptor_buffer_infos.end(), every.begin());
        vk::WriteDescriptorSet write_descriptor_set{ descriptor_set, 0, 0, MAX_PARAMETER_COUNT,
            vk::DescriptorType::eStorageBuffer, nullptr, every.data() };"""


# -- what there has to be ----------------------------------------------------------------------------------


def macros(env: Mapping[str, str]) -> str:
    """Return the macros of the Vulkan headers; "" if they, or those of SPIR-V, are missing."""
    command = [*shlex.split(env.get("CXX") or "c++"), "-x", "c++", "-dM", "-E", "-"]
    try:
        done = subprocess.run(command, input=HEADERS, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout if done.returncode == 0 else ""


def check_tools(env: Mapping[str, str]) -> None:
    """Refuse a machine that lacks what the back end is compiled with, besides compilers."""
    if not shutil.which("glslc", path=env.get("PATH")):
        raise Obstacle(f"llama.cpp's Vulkan back end is compiled with glslc, which is not here: {INSTALL}.")
    if not macros(env):
        raise Obstacle(f"llama.cpp's Vulkan back end needs Vulkan's and SPIR-V's headers: {INSTALL}.")


def device(env: Mapping[str, str], folders: Sequence[Path] = DRIVERS) -> dict[str, str]:
    """Return the variables that make the software device the only one, and have llama.cpp take it."""
    if any(env.get(name) for name in CHOOSES):
        return {}
    found = [str(file) for folder in folders for file in sorted(folder.glob("lvp_icd*.json"))]
    if not found:
        raise Obstacle(f"There is no software Vulkan device (Mesa's lavapipe) on this machine: {DRIVER}.")
    # llama.cpp ignores devices of type CPU unless they are named
    return {"VK_ICD_FILENAMES": found[0], "VK_DRIVER_FILES": found[0], "GGML_VK_VISIBLE_DEVICES": "0"}


# -- the build ---------------------------------------------------------------------------------------------


def for_old_headers(text: str) -> str:
    """Return the back end's source without VK_EXT_layer_settings, which serves validation alone.

    Older headers (1.3.239 of Debian 12) lack it, and the back end does not check.
    """
    begin, end = (
        r"    VkBool32 enable_best_practice = ",
        r"^    vk::InstanceCreateInfo instance_create_info\(",
    )
    return replaced(rf"{begin}layer_settings;.*?{end}[^\n]*", PLAIN, text)


def for_old_drivers(text: str) -> str:
    """Return the back end's source with no binding left over in a descriptor set that is written.

    A set keeps what an earlier shader with more bindings had there, in buffers that are gone. No shader reads
    it, so Vulkan allows that; lavapipe of Mesa 22.3 counts references on it, and crashes in its own thread.
    """
    return replaced(r"^        vk::WriteDescriptorSet write_descriptor_set\{[^\n]*", WHOLE_SET, text)


def replaced(pattern: str, by: str, text: str) -> str:
    """Return the text with one place in it replaced, if that has not been done yet."""
    if by in text:
        return text
    new, n = re.subn(pattern, lambda _: by, text, flags=re.DOTALL | re.MULTILINE)
    if n != 1:
        raise Obstacle(
            "These Vulkan headers are too old for llama.cpp's back end, whose source is not the one that is "
            "known here: install newer headers (https://vulkan.lunarg.com)."
        )
    return new


EDITS = {"ggml-vulkan.cpp": for_old_headers, "ggml-vulkan-common.h": for_old_drivers}


def edit(source: Path) -> None:
    """Adapt llama.cpp's source to the headers, and the driver of their time."""
    for name, edited in EDITS.items():
        file = source / BACK_END / name
        text = file.read_text(encoding="utf-8")
        if (new := edited(text)) != text:
            file.write_text(new, encoding="utf-8")


def unpack(spec: str, folder: Path, env: Mapping[str, str]) -> Path:
    """Fetch llama-cpp-python's source; return the folder with it."""
    source = folder / "source"
    shutil.rmtree(source, ignore_errors=True)
    packed = folder / "packed"
    if pip("download", "--no-deps", "--no-binary", ":all:", "--dest", str(packed), spec, env=env):
        raise Obstacle(f"{explain(tail(LOG, 200_000), 1)}; the whole log is {LOG}.")
    shutil.unpack_archive(next(packed.glob("*.tar.gz")), folder / "unpacked")
    next((folder / "unpacked").iterdir()).rename(source)
    for rest in (packed, folder / "unpacked"):
        shutil.rmtree(rest)
    return source


def made(spec: str) -> dict[str, str]:
    """Return what a build is made of, to recognise it later."""
    edits = hashlib.sha256((PLAIN + WHOLE_SET).encode()).hexdigest()
    return {"spec": spec, "options": BUILT_WITH, "edits": edits, "python": sys.version.split()[0]}


def build(folder: Path, env: Mapping[str, str]) -> Path:
    """Build llama-cpp-python into the folder, unless it is there; return what PYTHONPATH has to name.

    What was compiled stays, so that an interrupted build continues.
    """
    site, record = folder / "site", folder / "ready"
    spec = pinned((ROOT / "pyproject.toml").read_text(encoding="utf-8"), LLAMA)
    made_of = made(spec)
    if record.exists() and json.loads(record.read_text(encoding="utf-8")) == made_of:
        return site
    check_compilers(env)
    check_tools(env)
    folder.mkdir(parents=True, exist_ok=True)
    check_space({folder: 1})
    n = cores()
    say(f"Building llama.cpp with its Vulkan back end into {folder}: about {max(2, 24 // n)} minutes, once.")
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    pip_env = pip_environment({**env, "CMAKE_ARGS": BUILT_WITH}, n_cores=n, memory=memory)
    if flags := flags_needed(env):
        pip_env |= {"CFLAGS": flags, "CXXFLAGS": flags}
    source, unpacked = folder / "source", folder / "unpacked-whole"
    if not unpacked.exists() or unpacked.read_text(encoding="utf-8") != spec:
        source = unpack(spec, folder, pip_env)
        unpacked.write_text(spec, encoding="utf-8")
    if "VK_EXT_layer_settings " not in macros(env):
        edit(source)
    shutil.rmtree(site, ignore_errors=True)
    options = ["-v", "--no-deps", "--no-cache-dir", "--target", str(site)]
    started = time.monotonic()
    status = pip(
        "install", *options, f"--config-settings=build-dir={folder / 'objects'}", str(source), env=pip_env
    )
    if status:
        raise Obstacle(f"{explain(tail(LOG, 200_000), status)}; the whole log is {LOG}.")
    record.write_text(json.dumps(made_of), encoding="utf-8")
    say(f"Built after {clock(time.monotonic() - started)}.")
    return site


def before(site: Path, env: Mapping[str, str]) -> str:
    """Return PYTHONPATH with the build first."""
    return os.pathsep.join([str(site), *filter(None, [env.get("PYTHONPATH")])])


def found_cards(env: Mapping[str, str]) -> str:
    """Return the cards that llama.cpp finds, in words; "" if it finds none."""
    code = "from edgespec.llama.devices import cards; print(', '.join(c.description for c in cards()))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=dict(env), capture_output=True, text=True
    )
    return done.stdout.strip()


# -- doing it ----------------------------------------------------------------------------------------------


def main() -> int:
    """Build if necessary, then run pytest."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        chosen = device(os.environ)
        folder = Path(os.environ.get("GPU_BUILD") or ROOT / "build" / "vulkan").resolve()
        site = build(folder, os.environ)
    except Obstacle as obstacle:
        say(str(obstacle))
        return 1
    except KeyboardInterrupt:
        say("Stopped: run make gpu-test again to continue the build.")
        return 130
    compiled = {"MESA_SHADER_CACHE_DIR": str(folder / "shaders")}  # each test has a home of its own
    env = {**compiled, **os.environ, **chosen, "PYTHONPATH": before(site, os.environ)}
    if not (cards := found_cards(env)):
        say(
            "llama.cpp was built with its Vulkan back end and finds no device: check what `vulkaninfo` lists."
        )
        return 1
    say(f"Tests run on {cards}.")
    named = [argument for argument in sys.argv[1:] if Path(argument.partition("::")[0]).exists()]
    command = [sys.executable, "-m", "pytest", *OWN_PROCESS, *sys.argv[1:], *([] if named else TESTS)]
    return subprocess.run(command, cwd=ROOT, env=env).returncode


if __name__ == "__main__":
    sys.exit(main())
