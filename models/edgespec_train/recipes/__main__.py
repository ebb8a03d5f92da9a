"""Make the embedded models: `python -m edgespec_train.recipes`.

Needs torch, tokenizers, gguf, jinja2, numpy, pillow and llama-cpp-python. Takes hours on two cores; stop it
when you like (Ctrl+C or SIGTERM) and start it again with the same command.
"""

import argparse
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # on a busy machine, waiting threads must not hold a core

try:
    import torch

    from edgespec.system import config
    from edgespec_train import device
    from edgespec_train.recipes import eye, mtp, stages  # after the variable: torch reads it when imported
except ModuleNotFoundError as missing:
    sys.exit(f'The recipes need {missing.name}: python -m pip install -e ".[train]" at the root installs it.')


def say(line: str) -> None:
    """Print a line of progress with the time of day."""
    print(time.strftime("%H:%M:%S"), line, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m edgespec_train.recipes", description="Make EdgeSpec's embedded models."
    )
    usual = config.cache_folder() / "recipes"
    parser.add_argument(
        "what",
        nargs="?",
        choices=("pair", "onward", "mtp", "eye"),
        default="pair",
        help="pair: from nothing; onward: the shipped draft, trained further; mtp: the shipped target with "
        "an MTP block; eye: its projector",
    )
    parser.add_argument(
        "--work", type=Path, help=f"folder for work files (default: in {str(usual).replace('%', '%%')})"
    )
    parser.add_argument("--out", type=Path, help="folder for what is made (default: WORK/made)")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="of torch")
    chosen = parser.parse_args()
    work = chosen.work or usual / chosen.what
    place = stages.WorkFolders(work, chosen.out or work / "made", device.choose())
    place.work.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(chosen.threads)
    try:
        {"pair": stages.make_pair, "onward": stages.go_on, "mtp": mtp.make, "eye": eye.make}[chosen.what](
            place, say
        )
    except KeyboardInterrupt as stopped:
        say(str(stopped) or "stopped; the same command goes on")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
