"""`edgespec distill`: a draft made for a model of yours, from that model's own output.

The work is in `edgespec_train`, a package of its own, which nothing else here imports.
"""

import argparse

from edgespec.commands.flag_table import THREADS, add_flags

DESCRIPTION = """Trains a draft for your own GGUF model on that model's output: an EAGLE-3 head if llama.cpp
can read the layers of its architecture (llama and qwen3), else a small draft model; Medusa heads if you ask
for them. It records text and trains for --minutes, tries the draft on held-out prompts, and installs it if it
is faster. You can stop it at any time; the same command continues where it stopped."""


FLAGS = {
    "--minutes MINUTES 60": "time to record text and train (60); 0: only try what was trained before",
    "--texts FOLDER": "your own text files, to ask the model about",
    "--kind eagle3|medusa|draft|": "what is trained: an EAGLE-3 head, Medusa heads, or a small draft model "
    "(default: see above)",
    "--folder FOLDER": "where texts and training state are kept (default: in the data folder)",
    "--disk GB 8": "disk space for texts (8)",
    **THREADS,
    "--anyway": "install the draft even if it is not faster",
    "--own-texts show|delete|": "show or delete the prompts and answers that --keep-texts kept",
}


def add(command: argparse.ArgumentParser) -> None:
    """Adds the flags."""
    which = "a GGUF file, or the name of an installed pair"
    command.add_argument("target", nargs="?", metavar="TARGET", help=which)
    tuned = "fine-tune this small draft model instead"
    command.add_argument("--from", dest="begin_with", metavar="DRAFT", help=tuned)
    add_flags(command, FLAGS)


def run(arguments: argparse.Namespace) -> int:
    """Trains; returns 1 if the draft is not faster, 130 if stopped."""
    from edgespec_train.command import distill

    return distill(arguments)
