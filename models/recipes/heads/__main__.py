"""Make a head: `cd models && python -m recipes.heads tiny` or `python -m recipes.heads smollm2 --file ...`.

Needs what `python -m recipes` needs. Takes an hour or more on two cores; stop it at any time (Ctrl+C or
SIGTERM) and start it again with the same command.
"""

import argparse
import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # on a busy machine, waiting threads must not hold a core

try:
    from edgespec_models.distill import device
    from recipes.__main__ import cache_folder, say
    from recipes.heads import stages
    from recipes.onward import SHIPPED
    from recipes.stages import WorkFolders
except ModuleNotFoundError as missing:
    sys.exit(
        f'The recipes need {missing.name}: python -m pip install -e ".[recipes]" at the root installs it.'
    )


def existing(name: str) -> Path:
    """Return a path that exists."""
    path = Path(name)
    if not path.is_file():
        raise argparse.ArgumentTypeError(f"{name} is no file: name the one that is to be read")
    return path


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m recipes.heads", description="Train a head for a target.")
    parser.add_argument("which", choices=("tiny", "smollm2"), help="the target: the embedded one, or SmolLM2")
    parser.add_argument("--work", type=Path, help="folder for work files (default: in the user's cache)")
    parser.add_argument("--out", type=Path, help="folder for the file that is made (default: WORK/made)")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="of torch")
    parser.add_argument("--file", type=existing, help="smollm2: SmolLM2-135M-Instruct.Q4_1.gguf")
    parser.add_argument("--spec-bench", type=existing, help="smollm2: Spec-Bench's question.jsonl")
    chosen = parser.parse_args()
    if chosen.which == "smollm2" and not (chosen.file and chosen.spec_bench):
        parser.error("smollm2 needs --file and --spec-bench")
    work = chosen.work or cache_folder() / f"head-{chosen.which}"
    place = WorkFolders(work, chosen.out or work / "made", chosen.threads, device.choose())
    try:
        if chosen.which == "tiny":
            stages.make_tiny(place, SHIPPED, say)
        else:
            stages.make_smollm2(place, chosen.file, chosen.spec_bench, say)
    except KeyboardInterrupt as stopped:
        say(str(stopped) or "stopped; the same command goes on")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
