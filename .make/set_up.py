"""Makes the .venv that every make target shares, once, and shows its progress.

Standard library only: nothing is installed yet when this runs, and with_python saw to Python 3.11 to 3.15.
`.venv/ready` is written last, so an interrupted build has none and is done anew.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import ready
from compiler_probe import flags_needed, portable_options, sets_flags
from obstacles import GIB, Obstacle, check_compilers, check_space, check_venv_module, explain

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
LOG = VENV / "install.log"
LLAMA = "llama-cpp-python"
OPTIONS = (
    "-DGGML_RPC=on"  # other machines: 4 s of it; what reads pictures (libmtmd), a third, is built by default
)
OTHER_BUILD = "name another compiler, as in make CC=clang CXX=clang++ chat"


# -- what pip is given -------------------------------------------------------------------------------------


def cores() -> int:
    """Count the processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def estimate(n_cores: int) -> str:
    """Estimate how long llama.cpp takes to compile: 12 to 27 core minutes, a third of it for pictures."""
    low, high = max(1, round(12 / n_cores)), max(2, round(30 / n_cores))
    return f"{low} to {high} minutes on {n_cores} core{'s' if n_cores > 1 else ''}"


def pip_environment(env: Mapping[str, str], *, n_cores: int, memory: int) -> dict[str, str]:
    """Add llama.cpp's default build options, drop what would lead pip out of .venv."""
    leads_away = {"PYTHONHOME", "PYTHONPATH", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER", "PIP_QUIET"}
    defaults = {
        "CMAKE_ARGS": OPTIONS,
        "CMAKE_BUILD_PARALLEL_LEVEL": str(max(1, min(n_cores, memory // GIB))),  # a compiler takes up to 1 GB
        "PIP_RETRIES": "2",
    }
    fixed = {"PIP_NO_INPUT": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    kept = {name: value for name, value in env.items() if value and name not in leads_away}
    return defaults | kept | fixed


def pinned(pyproject: str, name: str) -> str:
    """Find a dependency as pyproject.toml pins it."""
    dependencies: list[str] = tomllib.loads(pyproject)["project"]["dependencies"]
    return next(line for line in dependencies if line.startswith(name))


# -- what the person sees ----------------------------------------------------------------------------------


def say(text: str) -> None:
    """Print a message for the user, beside what the program itself will print."""
    print(text, file=sys.stderr, flush=True)


def clock(seconds: float) -> str:
    """Write a span of time as people say it."""
    return f"{int(seconds)} s" if seconds < 60 else f"{int(seconds // 60)} min {int(seconds % 60)} s"


def doing(log: str) -> str:
    """Find pip's progress at the end of its log."""
    steps = re.findall(
        r"^ *(\[ *\d+(?:/\d+|%)\]|(?:Collecting|Downloading|Installing) [^\s(]+)", log, re.MULTILINE
    )
    if not steps:
        return "preparing"
    return f"compiling llama.cpp {steps[-1]}" if steps[-1].startswith("[") else steps[-1].lower()


def watch(command: Sequence[str], env: Mapping[str, str]) -> int:
    """Run a command into the log and show its progress: live on a terminal, else every half minute."""
    live, start = sys.stderr.isatty(), time.monotonic()
    told = start
    with LOG.open("wb") as out:
        # a session of its own: Ctrl+C reaches only us, and we end the compilers with it
        child = subprocess.Popen(
            command,
            env=dict(env),
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
        try:
            while child.poll() is None:
                time.sleep(0.1)
                now = time.monotonic()
                if live or now - told >= 30:
                    told, line = now, f"  {doing(tail(LOG))}, {clock(now - start)}"
                    print(
                        f"\r\033[K{line[:78]}" if live else line + "\n", end="", file=sys.stderr, flush=True
                    )
        except BaseException:
            end_session(child)
            raise
        finally:
            if live:
                print("\r\033[K", end="", file=sys.stderr, flush=True)
    if child.returncode < 0:  # pip was killed: its compilers must end too
        end_session(child)
    return child.returncode


def tail(log: Path, size: int = 50_000) -> str:
    """Read the end of a file."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - size))
        return file.read().decode("utf-8", "replace")


def end_session(child: subprocess.Popen[bytes]) -> None:
    """End a child and all it has started."""
    for sign in (signal.SIGINT, signal.SIGKILL):  # pip cleans up after the first
        try:
            os.killpg(child.pid, sign)
            child.wait(timeout=10)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            pass


# -- doing it ----------------------------------------------------------------------------------------------


def make_venv() -> None:
    """Make .venv afresh, with the Python that runs this or, inside another environment, the one under it."""
    base = getattr(sys, "_base_executable", None) or sys.executable
    done = subprocess.run([base, "-m", "venv", "--clear", str(VENV)], capture_output=True, text=True)
    if done.returncode != 0:
        words = (done.stderr.strip() or done.stdout.strip() or "no reason given").splitlines()[-1]
        raise Obstacle(f"{base} could not make {VENV} ({words.rstrip('.')}): see to that and run make again.")


def pip(*arguments: str, env: Mapping[str, str]) -> int:
    """Run pip of .venv, watched; return its exit status."""
    return watch([str(VENV / "bin" / "python"), "-m", "pip", *arguments], env)


def install(*arguments: str, env: Mapping[str, str]) -> None:
    """Install something into .venv, or say in a sentence why that failed."""
    if status := pip("install", *arguments, env=env):
        raise Obstacle(f"{explain(tail(LOG, 200_000), status)}; the whole log is {LOG}.")


def is_built(spec: str, env: Mapping[str, str]) -> bool:
    """Tell whether a finished wheel is available, from a registry or an earlier build in pip's own cache."""
    look = ["install", "--dry-run", "--no-deps"]
    if pip(*look, "--only-binary", ":all:", spec, env=env) == 0:
        return True
    unreached = "cannot be reached" in explain(tail(LOG))  # but perhaps only one registry of several
    name, _, version = spec.partition("==")
    wheel = f"{name.replace('-', '_')}-{version}-"
    kept = [str(VENV / "bin" / "python"), "-m", "pip", "cache", "list", wheel]
    if (
        wheel not in subprocess.run(kept, capture_output=True, text=True, env=dict(env)).stdout
        and not unreached
    ):
        return False
    install(*look[1:], spec, env=env)
    return bool(re.search(rf"{wheel}\S+\.whl", tail(LOG)))  # else the cached one is of another source


def install_llama(spec: str, env: Mapping[str, str], *, own_build: bool) -> None:
    """Install llama-cpp-python, as a finished wheel or, after checking what that takes, compiled here."""
    if not own_build and is_built(spec, env):
        return install(spec, env=env)
    check_compilers(env)
    check_space({ROOT: 1, Path(tempfile.gettempdir()): 1})
    say(f"Building llama.cpp from source: {estimate(cores())}, once.")
    if flags := flags_needed(env):
        say("This compiler drops stores that the processor's AMX unit needs: llama.cpp is built without AMX.")
        env = {**env, "CFLAGS": flags, "CXXFLAGS": flags}
    # pip's cache does not know with which CMAKE_ARGS a wheel was built: custom builds stay out of it
    fresh = ["--no-cache-dir", "--force-reinstall", "--no-deps"] if own_build else []
    install("-v", *fresh, "--no-binary", LLAMA, spec, env=env)


def self_test() -> tuple[int, str]:
    """Evaluate the embedded pair; return 0, or 3 if EdgeSpec heals it, 4 if not, and what is wrong."""
    command = [str(VENV / "bin" / "python"), "-P", "-m", "edgespec.system.self_test"]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    return (done.returncode, done.stdout.strip()) if done.returncode in (3, 4) else (0, "")


def heal_llama(spec: str, env: Mapping[str, str], *, test: Callable[[], tuple[int, str]] = self_test) -> None:
    """Test what is installed; if it computes wrong, compile it once without processor-specific parts."""
    status, fault = test()
    if status and not sets_flags(env):
        check_compilers(env)
        say(
            f"llama.cpp does not compute correctly on this processor ({fault}): building it again without "
            f"what is specific to it, {estimate(cores())}."
        )
        options = f"{env['CMAKE_ARGS']} {portable_options(env)}"
        pip("cache", "remove", LLAMA.replace("-", "_"), env=env)  # else the next clone gets the same again
        again = ["--force-reinstall", "--no-deps", "--no-binary", LLAMA, spec]
        install("-v", *again, env={**env, "CMAKE_ARGS": options})
        status, fault = test()
    if status == 3:
        say(
            f"llama.cpp computes correctly only without repacked weights ({fault}): EdgeSpec leaves them out."
        )
    elif status:
        raise Obstacle(f"llama.cpp does not compute correctly on this processor: {fault}; {OTHER_BUILD}")


def needs_own_build(here: Mapping[str, str], want: Mapping[str, str]) -> bool:
    """Tell whether llama.cpp must be compiled with the user's CMAKE_ARGS; here: what .venv holds."""
    if "CMAKE_ARGS" not in want:
        return False
    if here.get("CMAKE_ARGS") != want["CMAKE_ARGS"]:
        return True
    return pinned(here["pyproject"], LLAMA) != pinned(want["pyproject"], LLAMA)


def set_up(env: Mapping[str, str]) -> None:
    """Make .venv, or bring it up to date, and record it."""
    start, record, want = time.monotonic(), ready.recorded(str(ROOT)), ready.wanted(str(ROOT), env)
    check_venv_module()
    check_space({ROOT: 1, Path(tempfile.gettempdir()): 0.5})
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if update := how_it_stands(env) == ready.OUTDATED:
        say("Updating .venv (pyproject.toml or CMAKE_ARGS has changed).")
        want["version"] = record["version"]
        (VENV / "ready").unlink()
    else:
        say(f"Making .venv with Python {want['version']}, once.")
        make_venv()
    here = record if update else {}  # what .venv holds
    if "CMAKE_ARGS" in record:
        want.setdefault("CMAKE_ARGS", record["CMAKE_ARGS"])
    given = {**env, "CMAKE_ARGS": want.get("CMAKE_ARGS", "")}
    pip_env = pip_environment(given, n_cores=cores(), memory=memory)
    install_llama(pinned(want["pyproject"], LLAMA), pip_env, own_build=needs_own_build(here, want))
    install("--editable", f"{ROOT}[dev,tools]", env=pip_env)
    heal_llama(pinned(want["pyproject"], LLAMA), pip_env)
    (VENV / "ready").write_text(json.dumps(here | want), encoding="utf-8")
    say(f"Ready after {clock(time.monotonic() - start)}.")


def how_it_stands(env: Mapping[str, str]) -> int:
    """Ask the Python of .venv, if there is one that runs, whether .venv is still valid."""
    command = [str(VENV / "bin" / "python"), "-I", "-S", str(Path(ready.__file__))]
    try:
        return subprocess.run(command, env=dict(env), stderr=subprocess.DEVNULL).returncode
    except OSError:
        return ready.USELESS


def main() -> int:
    """Set up, unless another make did it meanwhile; every possible end is one line."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.default_int_handler)
    try:
        with open(__file__) as lock:  # one at a time in this folder
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                say("Another make is setting up .venv: waiting for it.")
                fcntl.flock(lock, fcntl.LOCK_EX)
            if how_it_stands(os.environ) != ready.READY:
                set_up(os.environ)
    except Obstacle as obstacle:
        say(str(obstacle))
        return 1
    except KeyboardInterrupt:
        say("Stopped before .venv was finished: run make again to make it.")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
