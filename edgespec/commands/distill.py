"""`edgespec distill`: a draft made for a model of yours, from that model's own output.

The work is in `edgespec_train`, a package of its own, which nothing else here imports.
"""

import argparse

DESCRIPTION = """Trains a draft for your own GGUF model on that model's output: an EAGLE-3 head if llama.cpp
can read the layers of its architecture (llama and qwen3), else a small draft model; Medusa heads if you ask
for them. It records text and trains for --minutes, tries the draft on held-out prompts, and installs it if it
is faster. You can stop it at any time; the same command continues where it stopped."""


def add(command: argparse.ArgumentParser) -> None:
    """Adds the flags."""
    command.add_argument(
        "target", nargs="?", metavar="TARGET", help="a GGUF file, or the name of an installed pair"
    )
    command.add_argument(
        "--minutes",
        type=float,
        default=60.0,
        metavar="N",
        help="time to record text and train (60); 0: only try what was trained before",
    )
    command.add_argument("--texts", metavar="FOLDER", help="your own text files, to ask the model about")
    command.add_argument(
        "--from", dest="begin_with", metavar="DRAFT", help="fine-tune this small draft model instead"
    )
    command.add_argument(
        "--kind",
        choices=("eagle3", "medusa", "draft"),
        help="what is trained: an EAGLE-3 head, Medusa heads, or a small draft model (default: see above)",
    )
    command.add_argument(
        "--folder",
        metavar="FOLDER",
        help="where texts and training state are kept (default: in the data folder)",
    )
    command.add_argument("--disk", type=float, default=8.0, metavar="GB", help="disk space for texts (8)")
    command.add_argument(
        "--threads", type=int, metavar="N", help="threads (default: one for each physical performance core)"
    )
    command.add_argument("--anyway", action="store_true", help="install the draft even if it is not faster")
    command.add_argument(
        "--own-texts",
        choices=("show", "delete"),
        help="show or delete the prompts and answers that --keep-texts kept",
    )


def run(arguments: argparse.Namespace) -> int:
    """Trains; returns 1 if the draft is not faster, 130 if stopped."""
    from edgespec_train.command import distill

    return distill(arguments)
