"""The examples of README and docs/serve.md, run to the letter."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from served import Served, served

ROOT = Path(__file__).resolve().parent.parent.parent
SECTION = (ROOT / "docs" / "serve.md").read_text()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("server"), "--canary", "1") as server:
        yield server


def examples(server: Served, language: str, word: str) -> list[str]:
    """Returns the examples in a language that have a word in them, for this server's port."""
    blocks = re.findall(rf"```{language}\n(.*?)```", SECTION, re.DOTALL)
    return [block.replace(":8080", f":{server.port}") for block in blocks if word in block]


def test_the_examples_of_the_readme_are_those() -> None:
    readme = (ROOT / "README.md").read_text()
    lines = [line for line in readme.splitlines() if line.startswith("curl ")]
    assert lines and all(line in SECTION for line in lines)


def test_every_route_and_chat_command_of_the_pages_is_there(server: Served) -> None:
    source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tui").rglob("*.py"))
    known = {re.sub(r"\{\w+\}", "NAME", path) for path in server.ask("/openapi.json").json["paths"]}
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        named = re.findall(r"`(?:[A-Z]+ )?(/[\w/.-]+)[^`\n]*`", page.read_text(encoding="utf-8"))
        for path in {path.replace("/slots/N", "/slots/NAME") for path in named} - known - {"/v1"}:
            here = f'"{path}"' in source or Path(path).parts[1] == "usr"
            assert here or server.ask(path).status != 404, (page.name, path)


def test_the_fields_of_the_edgespec_object_are_those_of_the_page(server: Served) -> None:
    table = SECTION.split("contain an `edgespec` object:")[1].split("\n\n")[1]
    shape = server.ask("/openapi.json").json["components"]["schemas"]["Speculation"]
    assert set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) == set(shape["properties"])


@pytest.mark.skipif(not shutil.which("curl"), reason="curl is not installed")
def test_the_curl_examples_work(server: Served) -> None:
    [block] = examples(server, "sh", "curl")
    said = []
    for line in block.strip().splitlines():
        done = subprocess.run(["sh", "-c", line + " -sS"], capture_output=True, text=True, timeout=30)
        assert done.returncode == 0, done.stderr
        said.append(done.stdout)
    chat, stream, filled, health = said
    assert json.loads(filled)["prompt"].endswith("<|fim_middle|>") and "content" in json.loads(filled)
    assert json.loads(chat)["choices"][0]["message"]["content"]
    assert stream.startswith("data: {") and stream.rstrip().endswith("data: [DONE]")
    assert json.loads(health) == {"status": "ok"}


def test_the_openai_example_works(server: Served) -> None:
    [block] = examples(server, "python", "OpenAI")
    done = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("That is outside what I know"), "what the embedded pair says of the sky"


def test_metrics_tell_plain_from_speculative(server: Served) -> None:
    """--canary 1: everything that does not ask for a drafter is served without one."""
    plain = server.chat(seed=1).json
    assert plain["timings"]["draft_n"] == 0
    drafted = server.chat(seed=1, edgespec={"drafter": "model", "draft_length": 4}).json
    assert drafted["choices"] == plain["choices"] and drafted["timings"]["draft_n"] > 0
    assert "speedup_measured" not in plain["timings"]
    server.chat(seed=2)  # by now enough was decoded plainly
    measured = server.chat(seed=1, edgespec={"drafter": "model", "draft_length": 4}).json["timings"]
    assert measured["speedup_measured"] > 0
    assert server.metric('edgespec_requests_total{finish="stop",mode="plain"}') >= 1
    assert server.metric('edgespec_requests_total{finish="stop",mode="speculative"}') >= 1
    assert server.metric("llamacpp:spec_decode_num_draft_tokens_total") >= drafted["timings"]["draft_n"]
    first = server.metric('llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="0"}')
    assert first <= server.metric("llamacpp:spec_decode_num_drafts_total")
    assert server.metric("edgespec_engine_up") == 1 and server.metric("edgespec_engine_restarts") == 0
    assert server.metric("edgespec_verify_seconds") > 0


def test_metrics_have_llama_servers_names_and_ways(server: Served) -> None:
    """Its speeds are those since somebody last asked."""
    timings = server.chat(max_tokens=8).json["timings"]
    text = server.ask("/metrics").body.decode()
    found = {name: (kind, float(value)) for name, kind, value in re.findall(
        r"# TYPE (llamacpp:\w+) (\w+)\n\1 (\S+)", text)}  # fmt: skip
    counted = ("prompt_seconds_total", "tokens_predicted_seconds_total", "n_decode_total", "n_tokens_max")
    assert all(found[f"llamacpp:{name}"][0] == "counter" for name in counted)
    assert all(found[f"llamacpp:{name}"][1] > 0 for name in counted)
    assert found["llamacpp:n_tokens_max"][1] >= timings["prompt_n"] + timings["predicted_n"]
    assert found["llamacpp:predicted_tokens_seconds"][1] > 0
    assert 0 < found["llamacpp:n_busy_slots_per_decode"][1] <= 4
    assert found["llamacpp:requests_processing"] == found["llamacpp:requests_deferred"] == ("gauge", 0)
    assert server.metric("llamacpp:predicted_tokens_seconds") == 0
