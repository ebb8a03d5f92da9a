"""What ships, and what `make` does before there is anything to run."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from test_imports import imported

ROOT = Path(__file__).resolve().parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
posix = pytest.mark.skipif(os.name == "nt", reason="make and its scripts are for Linux and macOS")

sys.path.insert(0, str(ROOT / ".make"))
import obstacles  # noqa: E402
import ready  # noqa: E402

if os.name != "nt":
    import set_up


# -- what it needs ---


EXTRAS = {
    "torch",
    "tokenizers",
    "mcp",
    "mcp_types",
    "anyio",
}  # imported by commands that say how to install them


def test_every_package_that_shipped_code_imports_is_declared() -> None:
    """httpx2, starlette and rich came along with other packages, and could have stayed away with the next."""
    named = {re.split(r"[^A-Za-z0-9-]", one)[0].lower() for one in PYPROJECT["project"]["dependencies"]}
    roots = [ROOT / root for root in PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]]
    sources = [path.read_text() for root in roots for path in root.rglob("*.py")]
    tops = {full.partition(".")[0] for source in sources for full in imported(source)}
    others = tops - sys.stdlib_module_names - {root.name for root in roots} - EXTRAS
    packages = packages_distributions()
    needed = {packages[top][0].lower().replace("_", "-") for top in others}
    assert needed == named


# -- the wheel ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel as pip would build it from this tree, without a network."""
    folder = tmp_path_factory.mktemp("wheel")
    build = f"from hatchling.build import build_wheel; print(build_wheel({str(folder)!r}))"
    done = subprocess.run([sys.executable, "-c", build], cwd=ROOT, capture_output=True, text=True, check=True)
    return zipfile.ZipFile(folder / done.stdout.split()[-1])


def test_a_wheel_claims_four_names_and_no_others(wheel: zipfile.ZipFile) -> None:
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {
        "edgespec",
        "edgespec_models",
        "edgespec_train",
        "edgespec_tui",
    }
    assert len(tops) == 5


def test_a_wheel_has_all_that_the_packages_need_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    """A file that is in no package, such as a half-trained model, must not be sent to anyone."""
    shipped = {name for name in wheel.namelist() if ".dist-info/" not in name}
    packages = ["edgespec", "tui/edgespec_tui", "models/edgespec_models", "models/edgespec_train"]
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", *packages], cwd=ROOT, capture_output=True, text=True
    )
    if listed.returncode == 0:  # not where the tree came as an archive
        there = [line for line in listed.stdout.splitlines() if (ROOT / line).exists()]
        assert shipped == {line.removeprefix("tui/").removeprefix("models/") for line in there}
    assert {
        f"{name}/py.typed" for name in ("edgespec", "edgespec_models", "edgespec_train", "edgespec_tui")
    } <= shipped
    assert "edgespec_models/tiny/MODEL_CARD.md" in shipped
    ggufs = [name for name in shipped if name.endswith(".gguf")]
    assert len(ggufs) == 4 and all(name.startswith("edgespec_models/tiny/") for name in ggufs)


def test_a_wheel_installs_the_command(wheel: zipfile.ZipFile) -> None:
    entry_points = next(name for name in wheel.namelist() if name.endswith("entry_points.txt"))
    assert b"edgespec = edgespec.__main__:run" in wheel.read(entry_points)


def test_an_installed_wheel_answers_from_an_empty_environment(
    wheel: zipfile.ZipFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside this tree, a file that the wheel lacks would be found here. What it needs is lent by path."""
    done = [sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "env")]
    subprocess.run(done, check=True)
    python = tmp_path / "env" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-index", "--no-deps"]
    subprocess.run([*pip, "--quiet", str(wheel.filename)], check=True)
    monkeypatch.setenv("PYTHONPATH", sysconfig.get_path("purelib"))  # without its .pth files: not this tree
    where = [str(python), "-c", "import edgespec; print(edgespec.__file__)"]
    assert str(tmp_path) in subprocess.run(where, cwd=tmp_path, capture_output=True, text=True).stdout
    words = [str(python.with_name("edgespec")), "run", "def add(a, b):", "--raw", "-n", "8", "--quiet"]
    ran = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0 and ran.stdout.strip(), ran.stderr


def test_the_embedded_models_are_small() -> None:
    """History keeps every model ever committed: the four files together stay within 24 MB."""
    sizes = [path.stat().st_size for path in (ROOT / "models" / "edgespec_models" / "tiny").glob("*.gguf")]
    assert len(sizes) == 4 and sum(sizes) <= 24_000_000


def test_the_version_is_stated_once() -> None:
    import edgespec

    assert edgespec.__version__ == PYPROJECT["project"]["version"]
    assert f"## [{edgespec.__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


# -- whether .venv serves ----------------------------------------------------------------------------------

WANT = {"root": "/here", "version": "3.11", "pyproject": "a = 1\n"}


@pytest.mark.parametrize(
    ("record", "want", "state"),
    [
        (WANT, WANT, ready.READY),
        ({}, WANT, ready.USELESS),  # never finished
        (WANT, WANT | {"pyproject": "a = 2\n"}, ready.OUTDATED),
        (WANT, WANT | {"root": "/elsewhere"}, ready.USELESS),  # the folder has moved
        (WANT, WANT | {"version": "3.12"}, ready.USELESS),  # its Python was replaced by the next
        (WANT, WANT | {"PYTHON": "python3.13"}, ready.USELESS),
        (WANT | {"PYTHON": "python3.13"}, WANT, ready.READY),  # asked for once is enough
        (WANT, WANT | {"CMAKE_ARGS": "-DGGML_CUDA=on"}, ready.OUTDATED),
        (WANT | {"CMAKE_ARGS": "-DGGML_CUDA=on"}, WANT, ready.READY),
    ],
)
def test_venv_is_made_anew_only_for_a_reason(
    record: dict[str, str], want: dict[str, str], state: int
) -> None:
    assert ready.state(record, want) == state


@pytest.mark.parametrize("content", [None, "", "{", "[]", "null"])
def test_a_damaged_record_counts_as_none(tmp_path: Path, content: str | None) -> None:
    (tmp_path / ".venv").mkdir()
    if content is not None:
        (tmp_path / ".venv" / "ready").write_text(content)
    assert ready.recorded(str(tmp_path)) == {}


# -- what stands in the way, each in one sentence ----------------------------------------------------------


def is_a_sentence(text: str) -> bool:
    return "\n" not in text and text.endswith(".") and "Traceback" not in text


def test_a_python_without_venv_is_reported(tmp_path: Path) -> None:
    obstacles.check_venv_module()
    with pytest.raises(obstacles.Obstacle, match="lacks its ensurepip module.*python3.*-venv") as told:
        obstacles.check_venv_module(lambda name: None if name == "ensurepip" else object())
    assert is_a_sentence(str(told.value))


def test_too_little_space_is_reported(tmp_path: Path) -> None:
    obstacles.check_space({tmp_path: 1, ROOT: 1}, lambda path: 3 << 30)
    with pytest.raises(obstacles.Obstacle, match=r"needs 3\.0 GB .* there are 2\.9 GB") as sentence:
        obstacles.check_space({tmp_path: 1, tmp_path.parent: 2}, lambda path: int(2.9 * (1 << 30)))
    assert is_a_sentence(str(sentence.value))


@pytest.mark.parametrize(
    ("env", "broken", "message"),
    [
        ({}, ".c", "no working C compiler was found .tried cc, gcc, clang"),
        ({}, ".cpp", r"no working C\+\+ compiler was found .tried c\+\+, g\+\+, clang\+\+"),
        ({"CXX": "icpx -w"}, ".cpp", r"tried CXX=icpx -w"),
    ],
)
def test_a_missing_compiler_is_reported(env: dict[str, str], broken: str, message: str) -> None:
    with pytest.raises(obstacles.Obstacle, match=message) as told:
        obstacles.check_compilers(env, lambda command, suffix, source: suffix != broken)
    assert is_a_sentence(str(told.value))


def test_a_compiler_is_tried_not_looked_up(tmp_path: Path) -> None:
    """On a Mac without the developer tools `cc` is there and only says that they are missing."""
    fake = tmp_path / "cc"
    fake.write_text("#!/bin/sh\nexit 1\n")
    fake.chmod(0o755)
    assert not obstacles.compiles([str(fake)], ".c", "int main(void) { return 0; }\n")
    assert not obstacles.compiles([str(tmp_path / "absent")], ".c", "int main(void) { return 0; }\n")


@pytest.mark.parametrize(
    ("log", "message"),
    [
        (
            "WARNING: Retrying after connection broken by 'NewConnectionError(...)'",
            "registry cannot be reached",
        ),
        ("ERROR: Could not install packages: [Errno 28] No space left on device", "The disk filled up"),
        ("SSLError(SSLCertVerificationError(1, 'CERTIFICATE_VERIFY_FAILED'))", "PIP_CERT"),
        ("ERROR: No matching distribution found for gguf>=0.17", "has no gguf>=0.17 for this Python"),
        ("c++: fatal error: Killed signal terminated program cc1plus", "CMAKE_BUILD_PARALLEL_LEVEL=1"),
        ("ERROR: Failed building wheel for llama-cpp-python", "llama.cpp did not compile"),
        ("ERROR: something else.\n", "(something else)"),
        ("", "(it gave no reason)"),
    ],
)
def test_pips_failures_are_reported_in_a_sentence(log: str, message: str) -> None:
    told = obstacles.explain(log)
    assert message in told and is_a_sentence(told + ".")
    assert "ended pip with signal 9" in obstacles.explain(log, -9)


# -- setting up --------------------------------------------------------------------------------------------


@posix
def test_the_quick_build_is_only_a_default() -> None:
    def given(**env: str) -> dict[str, str]:
        return set_up.pip_environment(env, n_cores=8, memory=4 << 30)

    assert given()["CMAKE_ARGS"] == "-DGGML_RPC=on"
    assert given(CMAKE_ARGS="-DGGML_CUDA=on")["CMAKE_ARGS"] == "-DGGML_CUDA=on"
    assert given()["CMAKE_BUILD_PARALLEL_LEVEL"] == "4"  # as many compilers as memory has gigabytes
    assert given(CMAKE_BUILD_PARALLEL_LEVEL="2")["CMAKE_BUILD_PARALLEL_LEVEL"] == "2"
    assert given(PIP_CONFIG_FILE="f", PIP_TARGET="t").keys() & {"PIP_CONFIG_FILE", "PIP_TARGET"} == {
        "PIP_CONFIG_FILE"
    }


@posix
def test_ones_own_cmake_args_are_built_once_and_again_for_another_llama_cpp() -> None:
    """pip would take a wheel from its cache that was built without them."""
    want = {"pyproject": '[project]\ndependencies = ["llama-cpp-python==0.3.36"]'}
    cuda = want | {"CMAKE_ARGS": "-DGGML_CUDA=on"}
    assert not set_up.needs_own_build({}, want)
    assert set_up.needs_own_build({}, cuda) and set_up.needs_own_build(want, cuda)
    assert not set_up.needs_own_build(cuda, cuda)
    assert set_up.needs_own_build(cuda, cuda | {"pyproject": cuda["pyproject"].replace("36", "37")})


@posix
@pytest.mark.parametrize(
    ("found", "env", "rebuilds", "text"),
    [
        ([(0, "")], {}, 0, ""),
        ([(3, "SIGSEGV"), (0, "")], {}, 1, "does not compute correctly on this processor (SIGSEGV)"),
        ([(4, "off by 3"), (3, "off by 3")], {}, 1, "EdgeSpec leaves them out"),
        ([(3, "SIGSEGV")], {"CFLAGS": "-O2"}, 0, "EdgeSpec leaves them out"),
        ([(4, "off by 3"), (4, "off by 3")], {}, 1, None),
        ([(4, "off by 3")], {"CMAKE_ARGS": "-DGGML_NATIVE=on"}, 0, None),
    ],
)
def test_a_build_that_computes_wrong_is_made_once_more_without_what_is_processor_specific(
    found: list[tuple[int, str]],
    env: dict[str, str],
    rebuilds: int,
    text: str | None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """pip's cache must forget such a wheel, too: the next clone would take it again."""
    ran: list[tuple[tuple[str, ...], str]] = []
    results = iter(found)
    monkeypatch.setattr(set_up, "check_compilers", lambda env: None)
    monkeypatch.setattr(set_up, "pip", lambda *args, env: ran.append((args, env["CMAKE_ARGS"])) or 0)
    given = {"CMAKE_ARGS": "-DLLAVA_BUILD=OFF", **env}
    if text is None:
        with pytest.raises(obstacles.Obstacle, match="off by 3; name another compiler"):
            set_up.heal_llama("llama-cpp-python==0.3.36", given, test=lambda: next(results))
    else:
        set_up.heal_llama("llama-cpp-python==0.3.36", given, test=lambda: next(results))
        assert text in capsys.readouterr().err
    assert [args[0] for args, _ in ran] == ["cache", "install"] * rebuilds
    if rebuilds:
        assert "-DLLAVA_BUILD=OFF -DGGML_NATIVE=OFF" in ran[-1][1] and not next(results, None)


@posix
@pytest.mark.parametrize(
    ("log", "message"),
    [
        ("", "preparing"),
        (
            "Collecting numpy>=2.0\n  Downloading numpy-2.4-cp311.whl (16.9 MB)\n",
            "downloading numpy-2.4-cp311.whl",
        ),
        (
            "  [1/213] Building CXX object a.o\n  [2/213] Building C object b.o\n",
            "compiling llama.cpp [2/213]",
        ),
        ("  [ 12%] Building CXX object a.o\n", "compiling llama.cpp [ 12%]"),
        ("  [9/9] Linking\nInstalling collected packages: numpy, gguf\n", "installing collected"),
    ],
)
def test_progress_is_read_from_pips_log(log: str, message: str) -> None:
    assert set_up.doing(log) == message


@posix
def test_the_estimate_is_the_measured_one_on_two_cores() -> None:
    assert set_up.estimate(2) == "6 to 15 minutes on 2 cores"
    assert set_up.estimate(1) == "12 to 30 minutes on 1 core"
    assert set_up.estimate(64) == "1 to 2 minutes on 64 cores"


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder, with a space in its name, that has what make needs before it makes .venv."""
    if shutil.which("make") is None:
        pytest.skip("there is no make here")
    folder = tmp_path / "a clone"
    shutil.copytree(ROOT / ".make", folder / ".make", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    return folder


def make_ready(clone: Path, **env: str) -> subprocess.Popen[str]:
    """Starts `make ready`, in a session of its own so that it can be sent what Ctrl+C sends."""
    return subprocess.Popen(
        [shutil.which("make") or "make", "ready"],
        cwd=clone, env=env, start_new_session=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


@posix
def test_when_all_is_there_make_starts_at_once(clone: Path) -> None:
    """It looks for no Python and runs no pip: where .venv is not right, the empty PATH makes it fail."""
    (clone / "bin").mkdir()
    (clone / "bin" / "sh").symlink_to("/bin/sh")
    (clone / ".venv" / "bin").mkdir(parents=True)
    (clone / ".venv" / "bin" / "python").symlink_to(sys.executable)
    record = clone / ".venv" / "ready"
    record.write_text(json.dumps(ready.wanted(str(clone), {})))
    with make_ready(clone, PATH=str(clone / "bin")) as make:
        assert make.communicate() == ("", "") and make.returncode == 0
    record.unlink()
    with make_ready(clone, PATH=str(clone / "bin")) as make:
        assert "EdgeSpec needs Python 3.11 to 3.15" in make.communicate()[1] and make.returncode == 2


def registry(address: tuple[str, int]) -> dict[str, str]:
    """What makes pip ask there and nowhere else."""
    ours = {"PIP_INDEX_URL": "http://{}:{}/simple".format(*address), "PIP_CONFIG_FILE": os.devnull}
    quick = {"PIP_RETRIES": "1", "PIP_NO_CACHE_DIR": "1"}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    return {**kept, **ours, **quick, "PYTHON": sys.executable}


@posix
@pytest.mark.slow
def test_a_registry_out_of_reach_is_reported_in_a_sentence(clone: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
    with make_ready(clone, **registry(address)) as make:  # nobody listens there any more
        out, err = make.communicate()
    assert make.returncode == 2 and out == ""
    doing, told, makes_own = err.splitlines()
    assert doing.startswith("Making .venv with Python") and makes_own.startswith("make: ***")
    assert told.startswith("The package registry cannot be reached") and is_a_sentence(told)
    assert not (clone / ".venv" / "ready").exists()


@posix
@pytest.mark.slow
def test_an_interrupted_build_leaves_nothing_running_and_is_not_taken_for_finished(clone: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        env = registry(server.getsockname())
        with make_ready(clone, **env) as make:
            connection, _ = server.accept()  # pip asks, and gets no answer
            os.killpg(make.pid, signal.SIGINT)
            err = make.communicate(timeout=30)[1]
            connection.settimeout(10)
            while connection.recv(4096):  # ends where pip has gone
                pass
            connection.close()
    assert "Stopped before .venv was finished: run make again" in err and "Traceback" not in err
    assert make.returncode != 0 and not (clone / ".venv" / "ready").exists()
    assert ready.recorded(str(clone)) == {}


# -- choosing a Python -------------------------------------------------------------------------------------


def python(folder: Path, name: str, version: str, *, has_venv: bool = True, runs: bool = True) -> None:
    """Puts a command into a folder that answers with_python's questions as some Python would."""
    major, minor = version.split(".")[:2]
    fits = 3 == int(major) and 11 <= int(minor) <= 14
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(
        "#!/bin/sh\n"
        f"{'' if runs else 'exit 127'}\n"
        f'case "$*" in -V) echo Python {version};; *version_info*) exit {0 if fits else 1};;\n'
        f"*ensurepip*) exit {0 if has_venv else 1};; *) echo {name} {version} ran $*;; esac\n"
    )
    (folder / name).chmod(0o755)


def with_python(folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    command = ["/bin/sh", str(ROOT / ".make" / "with_python"), "script"]
    return subprocess.run(command, env={"PATH": str(folder), **env}, capture_output=True, text=True)


@posix
def test_a_python_is_chosen_by_running_it(tmp_path: Path) -> None:
    """Version managers leave commands behind that exist and fail; a system's python3 may be too old."""
    python(tmp_path, "python3", "3.9.2")
    python(tmp_path, "python3.14", "3.14.0", runs=False)
    python(tmp_path, "python3.13", "3.13.1", has_venv=False)
    python(tmp_path, "python3.12", "3.12.1")
    assert with_python(tmp_path).stdout == "python3.12 3.12.1 ran script\n"


@posix
def test_the_users_own_python3_comes_first(tmp_path: Path) -> None:
    python(tmp_path, "python3", "3.11.2")
    python(tmp_path, "python3.14", "3.14.0")
    assert with_python(tmp_path).stdout == "python3 3.11.2 ran script\n"
    assert with_python(tmp_path, PYTHON="python3.14").stdout == "python3.14 3.14.0 ran script\n"


@posix
def test_a_python_may_lie_in_a_folder_with_a_space_in_its_name(tmp_path: Path) -> None:
    python(tmp_path / "my tools", "python", "3.12.1")
    asked = tmp_path / "my tools" / "python"
    assert with_python(tmp_path, PYTHON=str(asked)).stdout == "python 3.12.1 ran script\n"


@posix
def test_a_python_without_venv_is_taken_when_there_is_no_other(tmp_path: Path) -> None:
    """It is set_up.py that tells what is missing."""
    python(tmp_path, "python3", "3.11.2", has_venv=False)
    assert with_python(tmp_path).stdout == "python3 3.11.2 ran script\n"


@posix
@pytest.mark.parametrize(
    ("version", "asked", "message"),
    [
        (None, "", "needs Python 3.11 to 3.15 and none was found: install one"),
        ("3.10.13", "", "none was found, only Python 3.10.13: install one"),
        ("3.16.0", "", "none was found, only Python 3.16.0: install one"),
        ("3.12.1", "python3.99", "PYTHON=python3.99 does not run: name another"),
        ("3.10.13", "python3", "PYTHON=python3 is Python 3.10.13: name another"),
    ],
)
def test_no_suitable_python_is_reported(
    tmp_path: Path, version: str | None, asked: str, message: str
) -> None:
    if version:
        python(tmp_path, "python3", version)
    done = with_python(tmp_path, PYTHON=asked)
    assert done.returncode == 1 and done.stdout == ""
    assert message in done.stderr and is_a_sentence(done.stderr.removesuffix("\n"))


def test_every_module_has_a_sentence_for_the_map() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / ".make" / "map.py", "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
