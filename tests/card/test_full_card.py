"""A card's memory ends during answers: one sentence, and an engine with less on the card."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from served import served, until

from edgespec.system.builds import built_for
from edgespec_models import tiny

SOURCE = Path(__file__).with_name("small_card.c")
LAYER = "VK_LAYER_EDGESPEC_small_card"
LONG = "the water " * 250  # llama.cpp asks for more memory of a card behind 400 tokens
PLAN = ("--target", tiny.target_path(), "--no-draft", "--ctx", "1024", "--threads", "1")
RESTART_S = 600.0  # on a device in software, beside other work


@dataclass(frozen=True, slots=True)
class SmallCard:
    """The card as seen through a layer that refuses memory from a limit on."""

    environment: dict[str, str]
    file: Path

    def end_at(self, n_bytes: int) -> None:
        self.file.write_text(str(n_bytes))

    def held(self, pid: int) -> int:
        """Returns the most bytes that a process has held."""
        return int(Path(f"{self.file}.{pid}").read_text())


@pytest.fixture
def small_card(tmp_path: Path) -> SmallCard:
    """Compiles the layer. What a process may hold has no limit yet."""
    compiler = shutil.which("cc")
    if built_for() != "Vulkan" or not compiler:
        pytest.skip("memory is refused by a layer of Vulkan, which a C compiler makes")
    folder = tmp_path / "layer"
    folder.mkdir()
    library = folder / "small_card.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE)], check=True)
    layer = {"name": LAYER, "type": "GLOBAL", "library_path": str(library), "api_version": "1.3.0"}
    layer |= {"implementation_version": "1", "description": SOURCE.stem}
    manifest = {"file_format_version": "1.2.0", "layer": layer}
    (folder / "small_card.json").write_text(json.dumps(manifest))
    file = folder / "limit"
    environment = {"VK_LAYER_PATH": str(folder), "VK_INSTANCE_LAYERS": LAYER, "SMALL_CARD": str(file)}
    return SmallCard(environment, file)


def test_an_engine_goes_on_with_less_on_a_card_that_is_full(small_card: SmallCard, tmp_path: Path) -> None:
    """It aborted, came back with the same layers on the card, and aborted again with the next long prompt."""
    with served(tmp_path, *map(str, PLAN), **small_card.environment) as server:
        asked = {"prompt": LONG, "max_tokens": 4}
        small_card.end_at(small_card.held(server.worker.pid))
        refused = server.ask("/v1/completions", asked, timeout=RESTART_S)
        assert refused.status == 503 and "ran out of memory" in refused.error["message"], server.logged()
        until(lambda: "the engine is running again" in server.logged(), RESTART_S)
        assert "with less on the graphics card" in server.logged()
        answered = server.ask("/v1/completions", asked, timeout=RESTART_S)
        assert answered.status == 200, server.logged()
        assert json.loads(server.ask("/v1/models").body)["data"][0]["meta"]["card"] == ""
