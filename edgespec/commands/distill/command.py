"""`edgespec distill`: from a target to a draft of its own, in as many sittings as you like."""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from edgespec.commands.distill.asked import digest, is_held_out
from edgespec.commands.distill.installing import CurrentPair, install, known
from edgespec.commands.distill.sitting import Sitting, claim, prepare
from edgespec.commands.status_line import StatusLine
from edgespec.engine.text_log import all_kept, name_of
from edgespec.errors import EdgeSpecError, ModelFileError, ModelUnsupportedError, SettingError
from edgespec.pairs.check import header_told, headers_of
from edgespec.pairs.settings import check_threads
from edgespec.system import config
from edgespec_models.gguf.facts import why_not_usable
from edgespec_models.gguf.header import Header
from edgespec_models.shelf.sizes import size_text

if TYPE_CHECKING:
    from edgespec_models.distill.progress import Stop

DESCRIPTION = """Trains a draft for your own GGUF model on that model's output: an EAGLE-3 head if llama.cpp
can read hidden states of its architecture (llama and qwen3), else a small draft model. It gathers text and
trains for --minutes, tries the draft on held-out prompts, and installs it if it is faster. You can stop it at
any time; the same command continues where it stopped."""
LEARNING = 0.3  # of the minutes, at least
INTERRUPTED = 130
MEASURING = (60.0, 300.0)  # seconds at least and at most, on top of the minutes
ENOUGH_OWN, MOST_OWN = 6, 24  # texts of the user's, held out: enough of them alone decide
TORCH = (
    "edgespec distill trains with torch, which is not installed: in EdgeSpec's folder, "
    "`python -m pip install '.[distill]'` gets it"
)


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
        help="time to gather and train (60); 0: only try what was trained before",
    )
    command.add_argument("--texts", metavar="FOLDER", help="your own text files, to ask the model about")
    command.add_argument(
        "--from", dest="begin_with", metavar="DRAFT", help="fine-tune this small draft model instead"
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
    """Gathers, trains, tries and installs; returns 1 if it is not faster, 130 if stopped."""
    if arguments.own_texts:
        return _own_texts(arguments)
    if arguments.target is None:
        raise SettingError("name the model that a draft is made for: edgespec distill TARGET")
    _check_numbers(arguments)
    known_pair = known(arguments.target)
    headers = _checked(known_pair.target)
    _need_torch()
    sitting = prepare(arguments, known_pair, headers)
    from filelock import FileLock, Timeout

    try:
        sitting.folder.mkdir(parents=True, exist_ok=True)
        with FileLock(sitting.folder / "lock", timeout=0):
            return _sit(sitting, arguments, known_pair)
    except Timeout:
        raise SettingError(f"another edgespec distill is running in {sitting.folder}: wait for it") from None
    except OSError as error:
        if not known_pair.target.is_file():
            raise ModelFileError(
                f"{known_pair.target} is gone: put it back, and go on where it was"
            ) from None
        raise EdgeSpecError(
            f"{error.filename or sitting.folder} cannot be written ({error.strerror or error}): earlier "
            "state is kept: make room, and the same command continues"
        ) from None


def _check_numbers(arguments: argparse.Namespace) -> None:
    if not 0 <= arguments.minutes <= 60 * 24 * 30:
        raise SettingError(f"--minutes is {arguments.minutes:g}: it must be from 0 to a month's worth")
    if not 0.01 <= arguments.disk <= 10_000:
        raise SettingError(f"--disk is {arguments.disk:g}: name gigabytes, 0.01 or more")
    check_threads(arguments.threads)


def _need_torch() -> None:
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # waiting threads must not hold a core
    if importlib.util.find_spec("torch") is None:
        raise SettingError(TORCH)
    try:
        import torch  # noqa: F401
    except (ImportError, OSError) as error:
        raise SettingError(
            f"torch cannot be loaded ({error}): install it again, in EdgeSpec's folder, with "
            "`python -m pip install --force-reinstall '.[distill]'`"
        ) from None


def _checked(target: Path) -> list[Header]:
    """Returns the headers of a target that can be run. Raises ModelFileError, ModelUnsupportedError."""
    with header_told():
        headers = headers_of(target)
    if reason := why_not_usable(headers[0]):
        raise ModelUnsupportedError(reason)
    return headers


def _sit(sitting: Sitting, arguments: argparse.Namespace, pair: CurrentPair) -> int:
    from edgespec.llama.model import take_log
    from edgespec_models.distill import course as courses
    from edgespec_models.distill.progress import Stop

    with suppress(OSError, AttributeError):
        os.nice(19 - os.nice(0))
    course = sitting.course
    stop = Stop("stopping at the next safe point; press Ctrl+C again to stop now")
    claim(sitting)
    course.folder.mkdir(parents=True, exist_ok=True)
    for left in course.folder.glob("*.part"):  # by one that was killed
        left.unlink()
    begun, seconds = time.monotonic(), arguments.minutes * 60
    try:
        if seconds:
            _listen(sitting, begun + courses.LISTENING * seconds, stop)
        if stop.wanted:
            return _stopped(None)
        least = LEARNING * seconds  # if the target answered slowly
        learned = courses.learn(course, max(begun + seconds, time.monotonic() + least), stop, _say)
    except ValueError as error:
        raise SettingError(f"{error}: give it more --minutes") from None
    except RuntimeError as error:
        if not pair.target.is_file():
            raise ModelFileError(f"{pair.target} is gone: put it back, and go on where it was") from None
        raise EdgeSpecError(f"{error}; texts and training state are kept in {course.folder}") from None
    finally:
        take_log()
    _say(
        f"round {learned.rounds}: {learned.tokens:,} tokens learned{'' if learned.complete else ' so far'}; "
        f"shared with the target on held-out text: {learned.before:.3f} before, {learned.after:.3f} now"
    )
    if stop.wanted:
        return _stopped(learned.draft)
    return _try(sitting, arguments, pair, learned.draft, seconds)


def _listen(sitting: Sitting, until: float, stop: Stop) -> None:
    """Has the target write, unless a plan on what it wrote is not completed yet."""
    from edgespec_models.distill import course as courses
    from edgespec_models.distill import gather, heard

    course, asked = sitting.course, sitting.asked
    if courses.is_open(course):
        _say("continuing with texts not trained on yet")
        return
    free = shutil.disk_usage(course.folder).free
    if free < course.disk // 4:
        _say(f"{course.folder} has {size_text(free)} free, less than a quarter of --disk")
    known_texts = frozenset(
        digest(ids.tolist())
        for path in (gather.there(course.folder, "heard") if asked.own else ())
        for ids in heard.ids_of(path)
    )
    courses.hear(
        course,
        asked.watched,
        lambda speaker, seed: asked.training(speaker, seed, known_texts),
        until,
        stop,
        _say,
    )


def _try(
    sitting: Sitting, arguments: argparse.Namespace, pair: CurrentPair, draft: Path, seconds: float
) -> int:
    from edgespec.commands.distill.trial import hold_trial, told
    from edgespec_models.distill import gather, heard

    watched = [text for path in gather.there(sitting.course.folder, "watched") for text in heard.read(path)]
    prompts = [text.ids[: text.prompt].tolist() for text in watched]
    own = [list(text.prompt) for text in sitting.asked.own if is_held_out(text)]
    prompts = own[-MOST_OWN:] if len(own) >= ENOUGH_OWN else own + prompts
    line = StatusLine()

    def leave(number: int, _: object) -> NoReturn:  # nothing is lost by an end here
        line.clear()
        _stopped(draft)
        os._exit(INTERRUPTED)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, leave)
    _say(f"trying it on {len(prompts)} held-out prompts")
    try:
        trial = hold_trial(
            pair.target,
            draft,
            pair.draft,
            prompts,
            arguments.threads,
            seconds=min(max(seconds * 0.2, MEASURING[0]), MEASURING[1]),
            on_stage=line.show,
        )
    finally:
        line.clear()
    print("\n".join(told(trial)))
    if not trial.faster and not arguments.anyway:
        print(
            "not installed: it was not shown to be faster than the present setup, or is slower than plain "
            f"decoding. It is {draft}; the same command continues training (--anyway installs it)"
        )
        return 1
    installed = install(pair, draft, arguments.target)
    print(f"installed as the draft of {installed}; next: edgespec chat {installed}")
    return 0


def _stopped(draft: Path | None) -> int:
    so_far = f" The draft so far is {draft}; --minutes 0 tries it." if draft else ""
    _say(f"stopped; the same command continues.{so_far}")
    return INTERRUPTED


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _own_texts(arguments: argparse.Namespace) -> int:
    """Shows or deletes the kept texts, of one target or of all."""
    kept = all_kept(config.data_folder())
    if arguments.target:
        target = known(arguments.target).target
        wanted = name_of(target, _checked(target)[0])
        kept = [texts for texts in kept if texts.folder.name == wanted]
    for texts in kept:
        size, n = texts.size(), len(texts.texts())
        if arguments.own_texts == "delete":
            texts.delete()
        done = "deleted" if arguments.own_texts == "delete" else "kept"
        print(f"{texts.folder.name}: {n:,} texts, {size_text(size)}, {done} in {texts.folder}")
    if not kept:
        print("nothing is kept; `edgespec serve --keep-texts 64` keeps up to 64 MB of what is answered")
    return 0
