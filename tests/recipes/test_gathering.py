"""SmolLM2 asks itself and answers, in processes that write shards."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="gathers in torch")
from edgespec_models.distill import heard
from edgespec_models.distill.hidden import Hidden
from recipes.heads import gathering, spec_bench, stages

ROOT = Path(__file__).resolve().parents[2]
FILE = Path.home() / ".local/share/edgespec/models/smollm2-135m/SmolLM2-135M-Instruct.Q4_1.gguf"
GATHER = """
import sys
from pathlib import Path
from recipes.heads import gathering
if __name__ == "__main__":
    file, bench, work = map(Path, sys.argv[1:4])
    gathering.run_all([
        gathering.Errand(file, bench, work, (2, 15, 29), n, 40, 3, sys.argv[4]) for n in range(2)
    ])
"""


def gather(folder, bench, device="cpu"):
    """Run two processes that gather, as a program does."""
    (folder / "gather.py").write_text(GATHER, encoding="utf-8")
    paths = os.pathsep.join([*(str(ROOT / part) for part in (".", "models")), *sys.path])
    return subprocess.run(
        [sys.executable, folder / "gather.py", FILE, bench, folder, device],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.fixture
def bench(test_data):
    if not FILE.exists():
        pytest.skip(f"{FILE} is not there: edgespec pull smollm2-135m")
    return test_data / "spec_bench.jsonl"


@pytest.mark.slow
def test_two_processes_write_what_the_file_says(bench, tmp_path):
    done = gather(tmp_path, bench)
    assert done.returncode == 0, done.stderr
    shards = gathering.shards(tmp_path)
    assert {path.name.split("-")[1] for path in shards} == {"0", "1"}
    texts = [text for path in shards for text in heard.read(path)]
    apart = {turn for q in spec_bench.read(bench) if q.number % 2 for turn in q.turns}
    with Hidden(FILE, stages.SMOL_TAPS, context=1024) as reader:
        for text in texts:
            said = reader.detokenise(text.ids.tolist()).decode("utf-8", "replace")
            assert not any(turn in said for turn in apart)
        text = min(texts, key=lambda t: len(t.ids))
        ids = text.ids[:-1].astype(int).tolist()
        reader.logits(ids)
        off = abs(reader.states(len(ids)) - text.states.astype(float)).mean() / abs(text.states).mean()
        assert off < 0.06  # 16 bits in the one, the file's own in the other; another layer: about 1


@pytest.mark.slow
def test_a_process_that_fails_ends_all_and_is_named(bench, tmp_path):
    done = gather(tmp_path, bench, "no such device")
    assert done.returncode and "a process that gathers ended with 1" in done.stderr
