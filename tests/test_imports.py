"""The arrows: who may import whom. Drawn in the house plan ("Rooms"), held here.

A new module takes its place in RANKS; an import goes to a lower rank or stays in its own, and nowhere do
imports, late ones included, run in a circle.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import edgespec

ROOT = Path(__file__).resolve().parent.parent
RANKS = (
    {"errors", "builds"},
    {
        "self_test",
        "distribution",
        "truncation",
        "sampling",
        "sampling_settings",
        "sampler_chain",
        "repetition",
        "text",
        "pace",
        "costs",
        "acceptance",
        "events",
        "gbnf",
        "gbnf_lark",
        "grammar",
        "masks",
        "cores",
        "config",
        "interrupt",
        "isolate",
        "terminal",
        "whole_file",
        "pair_check",
        "pair_store",
        "pair_settings",
    },
    {
        "stats",
        "messages",
        "state_file",
        "planned",
        "answer",
        "answer_stream",
        "attach",
        "client",
        "connection",
        "private_engine",
        "token_scores",
        "verify",
        "chat",
        "template_child",
        "template_renderer",
        "template_sandbox",
        "template_wire",
        "well_known_templates",
        "families",
        "families.addressed",
        "fill_in",
        "families.deltas",
        "families.family",
        "families.harmony",
        "families.json_calls",
        "families.known",
        "families.literal_calls",
        "families.nested_calls",
        "families.reader",
        "families.tagged_calls",
        "template_traits",
        "conversation",
        "forced_call",
        "drafters",
        "drafters.draft_model",
        "drafters.draft_temperature",
        "drafters.competition",
        "drafters.demanded",
        "drafters.recycling",
        "drafters.suffix_lookup",
        "matchers",
        "trials",
        "trial_child",
    },
    {"decode", "experience", "joint_pace", "request", "saved", "stream"},
    {
        "slots",
        "prefixes",
        "joint_step",
        "overlap",
        "llama",
        "self_test_child",
        "cache_size",
        "batch",
        "context_settings",
        "context",
        "pair_costs",
        "ggml_devices",
        "memory",
        "memory.answer",
        "memory.at_load",
        "memory.free",
        "memory.question",
        "engine",
    },
    {"scheduler"},
    {"", "pair_files", "one_shot"},  # "" is the package itself, the public face
    {
        "bench",
        "bench.arguments",
        "bench.figures",
        "bench.keeper",
        "bench.machine",
        "bench.plot",
        "bench.prompts",
        "verify_pair",
        "verify_pair.arguments",
        "verify_pair.equality",
        "verify_pair.goodness",
        "verify_pair.prompts",
        "verify_pair.row_memory",
    },
    {"bench.lines", "bench.peer_command", "verify_pair.budget"},
    {"bench.peer", "verify_pair.texts"},
    {"bench.measure", "bench.takers", "bench.progress", "bench.report", "verify_pair.samples"},
    {"bench.about", "bench.markdown", "bench.picture", "bench.record", "verify_pair.report"},
    {"bench.command", "verify_pair.command"},
    {
        "plan",
        "plan.arguments",
        "plan.command",
        "plan.heads",
        "plan.measuring",
        "plan.model_cost",
        "plan.pair_plan",
        "plan.report",
        "plan.slices",
        "plan.stub",
        "plan.before_pull",
    },
    {
        "pull",
        "pull.arguments",
        "pull.command",
        "pull.progress_line",
        "pull.words",
        "pull.starter",
        "installed",
        "installed.arguments",
        "installed.command",
        "installed.import_files",
        "installed.words",
    },
    {
        "doctor",
        "doctor.arguments",
        "flags",
        "doctor.asking",
        "doctor.cards",
        "doctor.command",
        "doctor.findings",
        "doctor.llama_child",
        "doctor.machine_checks",
        "doctor.pair_checks",
        "doctor.report",
        "doctor.speculation_check",
        "doctor.surroundings",
    },
    {
        "intake",
        "outlet",
        "worker",
        "server",
        "server.bodies",
        "server.front_page",
        "server.answering",
        "server.filling",
        "server.llama_cpp_answers",
        "server.llama_cpp_dialect",
        "server.llama_cpp_requests",
        "server.anthropic_answers",
        "server.anthropic_dialect",
        "server.anthropic_requests",
        "server.responses_answers",
        "server.responses_dialect",
        "server.responses_requests",
        "server.translation",
        "server.app",
        "server.chat_answers",
        "server.tool_requests",
        "server.turns",
        "server.arguments",
        "server.command",
        "server.gate",
        "server.generation",
        "server.logprobs",
        "server.logs",
        "server.announcing",
        "server.metrics",
        "server.model_routes",
        "server.pairs",
        "server.openai_answers",
        "server.openai_requests",
        "server.owner",
        "server.refusal",
        "server.settings",
        "server.settings_file",
        "server.structured",
        "server.situation",
        "server.supervisor",
        "server.worker_process",
    },
    {"cli"},
    {"__main__"},
)
RANK = {name: rank for rank, names in enumerate(RANKS) for name in names}
LLAMA = {
    "llama",
    "batch",
    "context_settings",
    "context",
    "ggml_devices",
    "memory.answer",
}  # the only modules that import llama_cpp
OF_LLAMA = {
    *LLAMA,
    "cache_size",
    "pair_costs",
    "engine",
    "one_shot",
    "self_test_child",
}  # and those that stand on them
OF_LLAMA |= {"scheduler", "plan.measuring"}
OF_LLAMA |= {"bench.takers", "bench.about", "bench.command", "intake", "worker"}
OF_LLAMA |= {
    "verify_pair.budget",
    "verify_pair.command",
    "verify_pair.equality",
    "verify_pair.prompts",
    "verify_pair.report",
    "verify_pair.row_memory",
    "verify_pair.samples",
    "verify_pair.texts",
}
OF_THE_WEB = {name for name in RANK if name.startswith("server.")} - {"server.arguments"}
TUI_MAY_SEE = {
    "edgespec.client",
    "edgespec.answer",
    "edgespec.attach",
    "edgespec.events",
    "edgespec.errors",
    "edgespec.config",
    "edgespec.pair_store",
    "edgespec.planned",
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


def place(full: str) -> str | None:
    """Returns which module of ours an imported name belongs to; None for other packages."""
    if full.partition(".")[0] != "edgespec":
        return None
    name = full.partition(".")[2]
    while name and name not in OURS:
        name = name.rpartition(".")[0]
    return name


ARROWS = {name: {place(full) for full in imported(path.read_text())} - {None} for name, path in OURS.items()}


def test_imports_are_found_wherever_they_stand() -> None:
    """The check of this file would be worth nothing if an import could hide."""
    source = "import a.b as c\ndef f():\n    from d import e\nif True:\n    from g.h import (i as j, k)\n"
    assert imported(source) == {"a.b", "d.e", "g.h.i", "g.h.k"}
    assert place("edgespec.drafters.recycling.TokenRecycling") == "drafters.recycling"
    assert (
        place("edgespec.chat") == "chat" and place("edgespec.__version__") == "" and place("os.path") is None
    )


def test_every_module_has_its_rank() -> None:
    assert OURS.keys() == RANK.keys(), "a new module takes its place in RANKS; one that is gone leaves it"


@pytest.mark.parametrize("name", OURS)
def test_arrows_never_point_up(name: str) -> None:
    upward = {other for other in ARROWS[name] if RANK.get(str(other), 0) > RANK.get(name, 99)}
    assert not upward, f"edgespec.{name} imports {upward}"


def circle(arrows: dict[str, set[str]]) -> list[str]:
    """Returns a way that ends where it began, or nothing."""

    def walk(name: str, way: list[str]) -> list[str]:
        if name in way:
            return [*way[way.index(name) :], name]
        return next((found for other in arrows[name] if (found := walk(other, [*way, name]))), [])

    return next((found for name in arrows if (found := walk(name, []))), [])


def test_imports_run_in_no_circle() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"], "the check sees one"
    assert not circle({name: set(map(str, others)) - {name} for name, others in ARROWS.items()})


def test_few_modules_touch_llama_cpp() -> None:
    touching = {
        n for n, path in OURS.items() if any(i.startswith("llama_cpp") for i in imported(path.read_text()))
    }
    assert touching == LLAMA


def reach(name: str) -> Iterator[str]:
    for other in ARROWS[name]:
        if other is not None and other != name:
            yield other
            yield from reach(other)


@pytest.mark.parametrize(
    "name",
    ["decode", "drafters.competition", "drafters.draft_model", "experience", "stats", "chat", "conversation"],
)
def test_the_core_sees_a_protocol_and_never_llama(name: str) -> None:
    assert not OF_LLAMA & set(reach(name))


def test_the_models_know_nothing_of_the_program() -> None:
    for path in modules(ROOT / "models/edgespec_models").values():
        names = {full.partition(".")[0] for full in imported(path.read_text())}
        assert not names & {"edgespec", "edgespec_tui", "torch", "llama_cpp"}, path


def test_the_terminal_app_sees_events_and_client_only() -> None:
    for path in modules(ROOT / "tui/edgespec_tui").values():
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
    assert not {"llama_cpp", "torch", "textual", "starlette", "gguf"} & loaded("edgespec.cli")


def test_the_whole_core_loads_without_llama_cpp() -> None:
    without = OF_LLAMA | OF_THE_WEB | {"__main__"}
    core = [f"edgespec.{name}" for name in OURS if name and name not in without]
    assert not {"llama_cpp", "torch", "textual", "starlette", "gguf"} & loaded(*core)


def test_the_web_process_and_the_engine_know_nothing_of_each_other() -> None:
    """One has no llama.cpp in it, which could end it; the other no HTTP, which would hold up its loop."""
    web = loaded(*(f"edgespec.{name}" for name in OF_THE_WEB))
    assert not {"llama_cpp", "torch", "textual", "edgespec.engine", "jinja2"} & web  # templates: elsewhere
    assert not {"starlette", "fastapi", "pydantic", "uvicorn", "asyncio"} & loaded("edgespec.worker")


# --- the public names


def test_every_public_name_is_there() -> None:
    assert sorted(edgespec.__all__) == edgespec.__all__
    for name in edgespec.__all__:
        assert getattr(edgespec, name).__name__ == name
    with pytest.raises(AttributeError, match="'edgespec' has no attribute 'Nonsense'"):
        edgespec.Nonsense  # noqa: B018


def test_public_names_are_those_that_are_promised() -> None:
    assert set(edgespec.__all__) == {*edgespec._PLACES, "EdgeSpecError", "load"}


def test_type_checkers_see_the_names_where_they_are() -> None:
    tree = ast.parse(OURS[""].read_text())
    block = next(n for n in tree.body if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING")
    seen = {full.removeprefix("edgespec.") for full in imported(ast.unparse(block))}
    assert seen == {f"{module}.{name}" for name, module in edgespec._PLACES.items()}
