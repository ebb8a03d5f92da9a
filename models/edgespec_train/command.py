"""`edgespec distill`: from a target to a draft of its own, in as many sessions as you like."""

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

from edgespec.commands.status_line import status_line
from edgespec.engine.text_log import name_of
from edgespec.errors import EdgeSpecError, ModelFileError, ModelUnsupportedError, SettingError
from edgespec.pairs.check import header_errors, headers_of
from edgespec.pairs.settings import check_threads
from edgespec.system import config
from edgespec_models.gguf.facts import why_not_usable
from edgespec_models.gguf.header import Header
from edgespec_models.shelf.sizes import size_text
from edgespec_train.current_pair import CurrentPair, current_pair, install
from edgespec_train.kept_texts import all_kept
from edgespec_train.prompts import digest, is_held_out
from edgespec_train.session import Session, claim, prepare

if TYPE_CHECKING:
    from edgespec_train.progress import Stop

TRAINING_SHARE = 0.3  # of the minutes, at least
INTERRUPTED = 130
TRIAL_S = (60.0, 300.0)  # at least and at most, on top of the minutes
ENOUGH_OWN, MOST_OWN = 6, 24  # texts of the user's, held out: enough of them alone decide
TORCH = (
    "edgespec distill trains with torch, which is not installed: in EdgeSpec's folder, "
    "`python -m pip install '.[train]'` gets it"
)


def distill(arguments: argparse.Namespace) -> int:
    """Records, trains, tries and installs; returns 1 if the draft is not faster, 130 if stopped."""
    if arguments.own_texts:
        return _own_texts(arguments)
    if arguments.target is None:
        raise SettingError("name the model that a draft is made for: edgespec distill TARGET")
    _check_numbers(arguments)
    pair = current_pair(arguments.target)
    headers = _checked(pair.target)
    _need_torch()
    session = prepare(arguments, pair, headers)
    from filelock import FileLock, Timeout

    try:
        session.folder.mkdir(parents=True, exist_ok=True)
        with FileLock(session.folder / "lock", timeout=0):
            return _run(session, arguments, pair)
    except Timeout:
        raise SettingError(f"another edgespec distill is running in {session.folder}: wait for it") from None
    except OSError as error:
        if not pair.target.is_file():
            raise ModelFileError(f"{pair.target} is gone: put it back, and go on where it was") from None
        raise EdgeSpecError(
            f"{error.filename or session.folder} cannot be written ({error.strerror or error}): earlier "
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
            "`python -m pip install --force-reinstall '.[train]'`"
        ) from None


def _checked(target: Path) -> list[Header]:
    """Returns the headers of a target that can be run. Raises ModelFileError, ModelUnsupportedError."""
    with header_errors():
        headers = headers_of(target)
    if reason := why_not_usable(headers[0]):
        raise ModelUnsupportedError(reason)
    return headers


def _run(session: Session, arguments: argparse.Namespace, pair: CurrentPair) -> int:
    from edgespec.llama.log import take_log
    from edgespec_train.learn import learn
    from edgespec_train.progress import Stop
    from edgespec_train.training_run import RECORDING_SHARE

    with suppress(OSError, AttributeError):
        os.nice(19 - os.nice(0))
    run = session.run
    stop = Stop("stopping at the next safe point; press Ctrl+C again to stop now")
    claim(session)
    run.make_folder()
    begun, seconds = time.monotonic(), arguments.minutes * 60
    try:
        if seconds:
            _record(session, begun + RECORDING_SHARE * seconds, stop)
        if stop.wanted:
            return _stopped(None)
        least = TRAINING_SHARE * seconds  # if the target answered slowly
        learned = learn(run, max(begun + seconds, time.monotonic() + least), stop, _report)
    except ValueError as error:
        raise SettingError(f"{error}: give it more --minutes") from None
    except RuntimeError as error:
        if not pair.target.is_file():
            raise ModelFileError(f"{pair.target} is gone: put it back, and go on where it was") from None
        raise EdgeSpecError(f"{error}; texts and training state are kept in {run.folder}") from None
    finally:
        take_log()
    _report(
        f"round {learned.rounds}: {learned.tokens:,} tokens learned{'' if learned.complete else ' so far'}; "
        f"shared with the target on held-out text: {learned.before:.3f} before, {learned.after:.3f} now"
    )
    if stop.wanted:
        return _stopped(learned.draft)
    return _try(session, arguments, pair, learned.draft, seconds)


def _record(session: Session, until: float, stop: Stop) -> None:
    """Has the target write, unless the texts that it wrote are not all trained on yet."""
    from edgespec_train import recorded
    from edgespec_train.learn import is_open
    from edgespec_train.training_run import record_texts

    run, prompts = session.run, session.prompts
    if is_open(run):
        _report("continuing with texts not trained on yet")
        return
    free = shutil.disk_usage(run.folder).free
    if free < run.disk // 4:
        _report(f"{run.folder} has {size_text(free)} free, less than a quarter of --disk")
    known = frozenset(
        digest(ids.tolist())
        for path in (run.recorded if prompts.own else ())
        for ids in recorded.ids_of(path)
    )
    record_texts(
        run,
        prompts.held_out,
        lambda target, seed: prompts.training(target, seed, known),
        until,
        stop,
        _report,
    )


def _try(
    session: Session, arguments: argparse.Namespace, pair: CurrentPair, draft: Path, seconds: float
) -> int:
    from edgespec_train.trial import hold_trial, report

    own = [list(text.prompt) for text in session.prompts.own if is_held_out(text)]
    prompts = [text.ids[: text.prompt].tolist() for text in session.run.held_out]
    prompts = own[-MOST_OWN:] if len(own) >= ENOUGH_OWN else own + prompts
    _report(f"trying it on {len(prompts)} held-out prompts")
    with status_line() as show:

        def leave(number: int, _: object) -> NoReturn:  # nothing is lost by an end here
            show("")
            _stopped(draft)
            os._exit(INTERRUPTED)

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, leave)
        trial = hold_trial(
            pair.target,
            draft,
            pair.draft,
            prompts,
            arguments.threads,
            seconds=min(max(seconds * 0.2, TRIAL_S[0]), TRIAL_S[1]),
            on_stage=show,
        )
    print("\n".join(report(trial)))
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
    _report(f"stopped; the same command continues.{so_far}")
    return INTERRUPTED


def _report(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _own_texts(arguments: argparse.Namespace) -> int:
    """Shows or deletes the kept texts, of one target or of all."""
    kept = all_kept(config.data_folder())
    if arguments.target:
        target = current_pair(arguments.target).target
        wanted = name_of(target, _checked(target)[0])
        kept = [texts for texts in kept if texts.folder.name == wanted]
    for texts in kept:
        size, n = texts.size(), len(texts.read())
        if arguments.own_texts == "delete":
            texts.delete()
        done = "deleted" if arguments.own_texts == "delete" else "kept"
        print(f"{texts.folder.name}: {n:,} texts, {size_text(size)}, {done} in {texts.folder}")
    if not kept:
        print("nothing is kept; `edgespec serve --keep-texts 64` keeps up to 64 MB of what is answered")
    return 0
