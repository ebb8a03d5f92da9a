"""`edgespec convert`: the same weights in another number format, written by llama.cpp's own quantiser.

On a processor the format decides what a token and an extra row of an evaluation cost: 16-bit weights
are large and cheap to compute with, 4-bit ones are small and must be unpacked for each row.
"""

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import mode

from edgespec.commands.flag_table import THREADS, add_flags
from edgespec.commands.output_file import check_output
from edgespec.commands.status_line import status_line
from edgespec.errors import EdgeSpecError, ModelFileError, SettingError
from edgespec_models.gguf.header import Header, HeaderError, read_file
from edgespec_models.gguf.number_formats import FORMATS, UnknownFormatError, n_bytes
from edgespec_models.kept_file import replacing
from edgespec_models.shelf.sizes import size_text

DESCRIPTION = (
    "Writes a copy of a model with its weights in another number format, using llama.cpp's quantiser. "
    "`edgespec bench` shows which format is fastest here."
)
NUMBERS = {  # llama_ftype, and the bits of a weight at most
    "F32": (0, 32.0),
    "F16": (1, 16.0),
    "BF16": (32, 16.0),
    "Q8_0": (7, 8.5),
    "Q6_K": (18, 8.5),
    "Q5_K_M": (17, 8.5),
    "Q4_K_M": (15, 8.5),
    "IQ4_XS": (30, 8.5),
    "Q5_0": (8, 8.5),
    "Q4_1": (3, 8.5),
    "Q4_0": (2, 8.5),
}
EXACT = {"F32", "F16", "BF16", "Q8_0"}  # their rounding does not show in answers
PARTS = "split.count"


def add(command: argparse.ArgumentParser) -> None:
    """Adds the flags."""
    command.add_argument("file", metavar="FILE", help="GGUF file of the model")
    command.add_argument("--to", required=True, choices=NUMBERS, metavar="FORMAT", help=", ".join(NUMBERS))
    add_flags(command, {"-o --output FILE": "output file (default: next to the model)", **THREADS})


def run(arguments: argparse.Namespace) -> int:
    """Writes the file, whole or not at all."""
    from edgespec.system.cores import threads_wanted

    source, wanted = Path(arguments.file), str(arguments.to)
    threads = threads_wanted() if arguments.threads is None else arguments.threads
    if threads < 1:
        raise SettingError(f"--threads is {threads}: give 1 or more")
    try:
        header = read_file(source)
        before = number_format(header)
        needed = most_bytes(header, NUMBERS[wanted][1])
    except (HeaderError, UnknownFormatError) as error:
        raise ModelFileError(str(error)) from None
    if (parts := header.number(PARTS, 1)) and parts > 1:
        raise ModelFileError(f"{source} is one of {parts} files: join them with llama-gguf-split first")
    if before == wanted:
        raise SettingError(f"{source} is already {wanted}: name another format with --to")
    output = Path(arguments.output) if arguments.output else source.with_name(named(source.stem, wanted))
    check_output(output, needed)
    _write(source, output, wanted, threads)
    print(f"{output}: {size_text(source.stat().st_size)} to {size_text(output.stat().st_size)}")
    if wanted not in EXACT:
        again = ", a second time" if before.startswith(("Q", "IQ")) else ""
        print(f"{wanted} rounds the weights{again}: answers may be worse")
    elif before.startswith(("Q", "IQ")):
        print(f"answers stay those of {before}: lost precision does not come back")
    return 0


def number_format(header: Header) -> str:
    """Returns the format of most of a model's matrices. Raises HeaderError."""
    weights = [one.type for one in header.tensors if len(one.shape) > 1 and one.type in FORMATS]
    if not weights:
        raise HeaderError(f"{header.name} has no weights to convert: name a model")
    return FORMATS[mode(weights)].name


def most_bytes(header: Header, bits: float) -> int:
    """Returns the size of the new file at most. Raises UnknownFormatError."""
    total = len(header.raw) + (1 << 20)
    for tensor in header.tensors:
        as_f32 = n_bytes(tensor.shape, 0, tensor.name)
        total += as_f32 if len(tensor.shape) < 2 else int(as_f32 * bits / 32)
    return total


def named(stem: str, wanted: str) -> str:
    """Returns a file's name with a format in place of the one that it ends with."""
    known = {*NUMBERS, *(layout.name for layout in FORMATS.values())}
    parts = re.match(r"(.+[.-])(\w+)$", stem)
    if parts and any(re.match(f"{name}(_|$)", parts[2].upper()) for name in known):
        return f"{parts[1]}{wanted}.gguf"
    return f"{stem}.{wanted}.gguf"


def _write(source: Path, output: Path, wanted: str, threads: int) -> None:
    """Has a child write the file under another name, which it loses once it is complete."""
    try:
        with replacing(output) as aside:
            words = [str(source), str(aside), str(NUMBERS[wanted][0]), str(threads)]
            failed = _child(words, f"converting to {wanted}")
            if "iostream" in failed:  # C++'s message for every file that cannot grow
                free = shutil.disk_usage(output.parent).free >> 20
                raise EdgeSpecError(
                    f"{output} cannot be written whole, {free:,} MiB are free there: nothing is kept of it"
                )
            if failed:
                raise EdgeSpecError(f"{source} cannot be converted to {wanted}: {failed}")
            read_file(aside)  # its tensors are all there
            if output.exists():
                raise SettingError(
                    f"{output} was created by another program while this ran: it is left as it is"
                )
    except HeaderError as error:
        raise EdgeSpecError(f"{source} cannot be converted to {wanted}: {error}") from None
    except OSError as error:
        raise EdgeSpecError(f"{output} cannot be written: {error.strerror or error}") from None


def _child(words: list[str], doing: str) -> str:
    """Runs the quantiser in a child, showing progress; returns what went wrong, "" for nothing."""
    command = [sys.executable, "-P", "-m", "edgespec.llama.convert_child", *words]
    last, nowhere = "", subprocess.DEVNULL
    with (
        status_line() as show,
        subprocess.Popen(command, stdin=nowhere, stdout=subprocess.PIPE, stderr=nowhere, text=True) as child,
    ):
        assert child.stdout is not None
        try:
            for text in child.stdout:
                last = text.strip()
                show(f"{doing}: tensor {last}")
            code = child.wait()
        finally:
            child.kill()
    if code < 0:
        return f"llama.cpp ended its process (signal {-code})"
    return (last or "its process ended without a message") if code else ""
