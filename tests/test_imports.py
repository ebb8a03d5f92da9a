"""The import rules: who may import whom.

Rooms are in one order, and an import stays in its room or goes to an earlier one; the same holds for floors
within `server/`. Nowhere do imports, late ones included, run in a circle.
"""

from __future__ import annotations

import ast
import functools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import edgespec

ROOT = Path(__file__).resolve().parent.parent
ROOMS = (
    "errors",
    "system",
    "sampling",
    "grammar",
    "core",
    "chat",
    "pairs",
    "protocol",
    "llama",
    "memory",
    "engine",
    "measure",
    "client",
    "local",
    "",  # the package itself: the public names
    "server",
    "commands",
    "__main__",
)
SERVER = (  # one process, one request, one dialect, all of it: what stands where in the web process
    {
        "refusal",
        "logs",
        "logprobs",
        "engine_status",
        "settings",
        "pairs",
        "own_calls",
    },
    {"json_body", "presence", "worker_process", "media"},
    {"worker_requests"},
    {"worker_life"},
    {"supervisor", "bodies", "body_child", "front_page", "embeddings"},
    {"turns", "choice_results", "last_requests", "metrics", "generation", "announcing", "gate"},
    {"event_stream"},
    {"requests"},
    {"answering", "dialects.embeddings"},
    {"pair_session"},
    {"dialects.dialect", "dialects.translation", "filling"},
    {"dialects"},
    {"model_routes", "own_routes"},
    {"app"},
)
TUI = ("", "hang_up", "terminal", "endpoint", "tools", "sessions", "settings", "widgets", "screens", "plain")
TUI += ("guarded_app", "palette", "app", "key_bindings", "demo_app", "launch")
MODELS = ("", "kept_file", "checked_value", "tiny", "gguf", "grow", "fit", "shelf", "hub")
TUI_MAY_SEE = {
    "edgespec.chat.families",
    "edgespec.client",
    "edgespec.core.stats",
    "edgespec.core.values",
    "edgespec.errors",
    "edgespec.local",
    "edgespec.memory.free",
    "edgespec.pairs.found",
    "edgespec.pairs.grown",
    "edgespec.pairs.planned",
    "edgespec.pairs.store",
    "edgespec.sampling.settings",
    "edgespec.__version__",
    "edgespec.system.config",
    "edgespec.system.end_process",
    "edgespec.system.named_file",
    "edgespec.memory.recommended",
    "edgespec.system.odd_text",
    "edgespec.system.other_programs",
    "edgespec.system.terminal",
}


def imported(source: str) -> set[str]:
    """Returns the full names that a module imports, wherever in it: "a.b" for `from a import b` too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def modules(folder: Path) -> dict[str, Path]:
    """Returns dotted name below `folder` -> file; the package itself is ""."""
    found = {}
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


OURS = modules(ROOT / "edgespec")
TERMINAL = modules(ROOT / "tui/edgespec_tui")
OF_MODELS = modules(ROOT / "models/edgespec_models")
TRAINING = modules(ROOT / "models/edgespec_train")
RUNTIME = {"edgespec": OURS, "edgespec_tui": TERMINAL, "edgespec_models": OF_MODELS}
PACKAGES = {**RUNTIME, "edgespec_train": TRAINING}


def place(full: str, package: str = "edgespec", ours: dict[str, Path] = OURS) -> str | None:
    """Returns which module of a package an imported name belongs to; None for other packages."""
    top, _, name = full.partition(".")
    if top != package:
        return None
    while name and name not in ours:
        name = name.rpartition(".")[0]
    return name


@functools.cache
def arrows(package: str = "edgespec") -> dict[str, set[str]]:
    """Returns module -> the modules of its package that it imports; reads them when it is asked first."""
    ours = PACKAGES[package]
    return {
        name: {to for full in imported(path.read_text()) if (to := place(full, package, ours)) is not None}
        for name, path in ours.items()
    }


def room(name: str) -> str:
    return name.partition(".")[0]


def floor(name: str) -> int:
    """Returns on which floor of the server a module stands."""
    name = name.removeprefix("server").removeprefix(".")
    if not name:  # no code
        return 0
    return next(n for n, names in enumerate(SERVER) if any(f"{name}.".startswith(f"{one}.") for one in names))


def test_imports_are_found_wherever_they_stand() -> None:
    """The check of this file would be worth nothing if an import could hide."""
    source = "import a.b as c\ndef f():\n    from d import e\nif True:\n    from g.h import (i as j, k)\n"
    assert imported(source) == {"a.b", "d.e", "g.h.i", "g.h.k"}
    assert place("edgespec.core.drafters.recycling.TokenRecycling") == "core.drafters.recycling"
    assert place("edgespec.chat.template.render") == "chat.template" and place("edgespec.__version__") == ""
    assert place("os.path") is None


def test_every_module_is_in_a_room() -> None:
    assert {room(name) for name in OURS} == set(ROOMS)
    assert {room(name) for name in TERMINAL} == set(TUI)
    assert {room(name) for name in OF_MODELS} == set(MODELS)


@pytest.mark.parametrize(
    ("package", "order"), [("edgespec", ROOMS), ("edgespec_tui", TUI), ("edgespec_models", MODELS)]
)
def test_rooms_import_in_one_direction(package: str, order: tuple[str, ...]) -> None:
    def at(name: str) -> int:
        return order.index(room(name))

    assert not [(a, b) for a, others in arrows(package).items() for b in others if b and at(b) > at(a)]


def test_the_web_process_imports_the_protocol_and_nothing_else_of_the_engine() -> None:
    seen = {b for a, others in arrows().items() for b in others if room(a) == "server"}
    assert {"protocol.messages"} <= seen and not {name for name in seen if room(name) in {"engine", "llama"}}


def test_floors_of_the_server_import_downward() -> None:
    inside = [(a, b) for a, others in arrows().items() for b in others if room(a) == room(b) == "server"]
    assert len(inside) > 50
    assert not [(a, b) for a, b in inside if floor(b) > floor(a)]


def test_dialects_do_not_know_each_other() -> None:
    """All become the requests of `server/requests/`; a fault in one dialect stays there."""

    def of(name: str) -> str:
        return ".".join(name.split(".")[:3])

    dialects = {of(name) for name in OURS if name.startswith("server.dialects.") and name.count(".") > 2}
    assert len(dialects) > 4
    pairs = {(of(a), of(b)) for a, others in arrows().items() for b in others}
    crossing = {b for a, b in pairs if {a, b} <= dialects and a != b}
    assert not crossing
    into = {(a, b) for a, others in arrows().items() for b in others if of(b) in dialects}
    assert {a for a, b in into if of(a) not in dialects} == {"server.app"}, "nothing generic knows one"


def test_commands_do_not_import_each_other() -> None:
    """What two of them need is in a room below."""

    def command(name: str) -> str:
        return name.split(".")[1] if name.startswith("commands.") and name.count(".") > 1 else ""

    pairs = {(command(a), command(b)) for a, others in arrows().items() for b in others}
    assert len({a for a, _ in pairs}) > 5
    assert not {(a, b) for a, b in pairs if a and b and a != b}


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Returns a way that ends where it began, or nothing."""

    harmless: set[str] = set()  # no circle goes through these

    def walk(name: str, way: list[str]) -> list[str]:
        if name in way:
            return [*way[way.index(name) :], name]
        if name in harmless:
            return []
        found = next((found for other in graph[name] if (found := walk(other, [*way, name]))), [])
        if not found:
            harmless.add(name)
        return found

    return next((found for name in graph if (found := walk(name, []))), [])


def test_imports_run_in_no_circle() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"], "the check sees one"
    for found in map(arrows, PACKAGES):
        assert not circle({name: others - {name} for name, others in found.items()})


def test_one_room_alone_loads_llama_cpp() -> None:
    touching = {
        n for n, path in OURS.items() if any(i.startswith("llama_cpp") for i in imported(path.read_text()))
    }
    assert {room(name) for name in touching} == {"llama"}
    touching = {n for n, path in TRAINING.items() if "llama_cpp" in imported(path.read_text())}
    assert touching == {"hidden"}


def test_every_fault_is_caught_only_where_many_would_fall_with_one() -> None:
    every = {**TRAINING, **OURS, **TERMINAL, **OF_MODELS}
    broad = {name for name, path in every.items() if re.search(r"except Exception\b", path.read_text())}
    ours = {
        "server.logs",
        "server.event_stream",
        "engine.worker",
        "engine.request_reader",
        "engine.active_streams",
    }
    of_app = {"guarded_app", "endpoint.attached", "tools.connection", "widgets.thumbnail"}
    assert broad == {*ours, *of_app, "chat.families.reader"}


def reach(name: str) -> set[str]:
    """Returns every module that is imported on the way, late imports included."""
    found: set[str] = set()
    ahead = {name}
    while ahead:
        found |= ahead
        ahead = set().union(*(arrows()[other] for other in ahead)) - found
    return found


@pytest.mark.parametrize("where", ["core", "sampling", "grammar", "chat"])
def test_the_core_sees_a_protocol_and_never_llama(where: str) -> None:
    seen = set().union(*(reach(name) for name in OURS if room(name) == where))
    assert not {name for name in seen if room(name) in {"llama", "engine"}}


def test_the_models_know_nothing_of_the_program() -> None:
    for path in OF_MODELS.values():
        names = {full.partition(".")[0] for full in imported(path.read_text())}
        assert not names & {"edgespec", "edgespec_tui", "torch", "llama_cpp"}, path


def test_one_command_alone_imports_what_trains_and_late() -> None:
    """Who trains nothing needs no torch, and can do without that package."""
    importing = {
        (package, name)
        for package, found in RUNTIME.items()
        for name, path in found.items()
        if any(full.startswith("edgespec_train") for full in imported(path.read_text()))
    }
    assert importing == {("edgespec", "commands.distill")}
    assert not {"edgespec_train", "torch"} & loaded("edgespec.commands.distill")
    assert "torch" not in loaded("edgespec_train.command"), "it says first how to get torch"


def test_training_knows_no_recipe() -> None:
    """The recipes stand on what `edgespec distill` uses; most of them need nothing else of it."""
    upward = {
        (a, b) for a, others in arrows("edgespec_train").items() for b in others if room(b) == "recipes"
    }
    assert {room(a) for a, _ in upward} == {"recipes"}


def test_the_terminal_app_sees_events_and_client_only() -> None:
    for path in TERMINAL.values():
        for full in imported(path.read_text()):
            if full.startswith("edgespec."):
                assert any(full.startswith(allowed) for allowed in TUI_MAY_SEE), (path, full)
            assert not full.startswith("llama_cpp"), path


# --- what importing costs


def loaded(*names: str) -> set[str]:
    """Returns the modules that a fresh Python has loaded after importing `names`."""
    code = (
        f"import sys, json\nfor name in {names!r}: __import__(name)\nprint(json.dumps(sorted(sys.modules)))"
    )
    paths = os.pathsep.join(str(ROOT / folder) for folder in (".", "models", "tui"))
    environment = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True, timeout=120
    )
    return set(json.loads(done.stdout))


HEAVY = {
    "llama_cpp",
    "torch",
    "textual",
    "starlette",
    "gguf",
    "numpy",
    "jinja2",
    "psutil",
    "asyncio",
    "pydantic",
}


def test_importing_edgespec_loads_nothing_heavy() -> None:
    assert not HEAVY & loaded("edgespec")


def test_the_command_line_is_parsed_without_llama_cpp() -> None:
    """`edgespec --help` and a mistyped flag answer at once."""
    assert not {"llama_cpp", "torch", "textual", "starlette", "gguf"} & loaded("edgespec.commands.cli")


def test_the_chat_begins_without_textual() -> None:
    """Wrong flags are told, and an engine begins to load, before the app is imported."""
    assert not {"textual", "rich", "numpy"} & loaded("edgespec_tui.launch")


def test_the_app_loads_what_speaks_to_servers_of_tools_when_one_is_needed() -> None:
    """Without a configured server, start and memory are as before: `mcp` takes a second and 40 MB."""
    app = loaded("edgespec_tui.app", "edgespec_tui.plain.command")
    assert "edgespec_tui.tools.toolbox" in app and not {"mcp", "mcp_types"} & app


def in_rooms(*rooms: str) -> list[str]:
    return [f"edgespec.{name}" for name in OURS if room(name) in rooms]


def test_the_whole_core_loads_without_llama_cpp() -> None:
    core = in_rooms(
        "errors", "system", "sampling", "grammar", "core", "chat", "pairs", "protocol", "client", "local"
    )
    assert not {"llama_cpp", "torch", "textual", "starlette", "gguf"} & loaded(*core)


def test_the_web_process_and_the_engine_know_nothing_of_each_other() -> None:
    """One has no llama.cpp in it, which could end it; the other no HTTP, which would hold up its loop."""
    web = loaded(*in_rooms("server"), "edgespec.commands.serve.command")
    elsewhere = {"llama_cpp", "edgespec.engine.pair", "numpy", "jinja2", "huggingface_hub"}
    assert not {"torch", "textual", *elsewhere} & web
    assert not {"starlette", "fastapi", "pydantic", "uvicorn", "asyncio"} & loaded("edgespec.engine.worker")


# --- the public names


def test_every_public_name_is_there() -> None:
    assert sorted(edgespec.__all__) == edgespec.__all__
    for name in edgespec.__all__:
        assert getattr(edgespec, name).__name__ == name
    with pytest.raises(AttributeError, match="'edgespec' has no attribute 'Nonsense'"):
        edgespec.Nonsense  # noqa: B018


def test_public_names_are_those_that_are_promised() -> None:
    assert set(edgespec.__all__) == {*edgespec._PLACES, "EdgeSpecError", "load", "stream"}


def test_type_checkers_see_the_names_where_they_are() -> None:
    tree = ast.parse(OURS[""].read_text())
    block = next(n for n in tree.body if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING")
    seen = {full.removeprefix("edgespec.") for full in imported(ast.unparse(block))}
    assert seen == {f"{module}.{name}" for name, module in edgespec._PLACES.items()}
