"""llama-server's command line: which program, which version, and the flags that this version knows."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from edgespec.pairs.placement import Rule

NAME = "llama-server"
HOST = "127.0.0.1"
HELP_S = 30.0


class PeerError(Exception):
    """The other program cannot be measured; one sentence says why."""


@dataclass(frozen=True, slots=True)
class PeerSettings:
    """How the peer is started. Without draft and head it decodes plainly; draft_length None: its default.

    head: the kind of head that `draft` is, or that is in the target's file. ngram: one of its own ways of
    guessing from the text, by its name (`ngram-simple`, ...), instead of draft and head.

    threads, n_ctx and the rest should be those of the pair that it is compared with.
    """

    program: Path
    target: Path
    draft: Path | None = None
    head: str | None = None
    ngram: str | None = None
    draft_length: int | None = None
    threads: int = 1
    n_ctx: int = 2048
    n_gpu_layers: int = -1
    kv_type: str = "f16"
    draft_kv_type: str = "f16"
    rope: tuple[str, ...] = ()  # flags
    flash_attention: bool | None = None  # None: its default
    probabilistic: bool = False  # drafts are sampled, and judged by p/q, where it can do that
    rules: tuple[Rule, ...] = ()  # where the target's tensors lie that do not follow their layers

    @property
    def plain(self) -> PeerSettings:
        """The same target, with nothing that guesses."""
        return replace(self, draft=None, head=None, ngram=None, draft_length=None)


@lru_cache(maxsize=8)
def said(program: Path, flag: str) -> str:
    try:
        done = subprocess.run(
            [str(program), flag],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=HELP_S,
            env=environment(),
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise PeerError(f"{program} {flag} failed ({error}): give another {NAME}") from None
    return done.stdout.decode("utf-8", "replace")


def environment() -> dict[str, str]:
    """Leaves out LLAMA_ARG_*, which stand for flags: the peer runs as specified here."""
    return {name: value for name, value in os.environ.items() if not name.startswith("LLAMA_ARG_")}


def command(settings: PeerSettings, port: int) -> list[str]:
    """Returns the command line, in the flags that this version of llama-server knows. Raises PeerError."""
    known = said(settings.program, "--help")
    if "--model-draft" not in known or "--parallel" not in known:
        raise PeerError(f"{settings.program} does not look like a {NAME}: its --help lists no --model-draft")
    words = [str(settings.program), "--host", HOST, "--port", str(port), "--parallel", "1"]
    words += ["--model", str(settings.target), "--ctx-size", str(settings.n_ctx)]
    words += ["--threads", str(settings.threads), "--threads-batch", str(settings.threads)]
    words += ["--cache-type-k", settings.kv_type, "--cache-type-v", settings.kv_type, *settings.rope]
    if settings.flash_attention is not None:
        words += ["--flash-attn", "on" if settings.flash_attention else "off"]
    if settings.n_gpu_layers >= 0:
        words += ["--n-gpu-layers", str(settings.n_gpu_layers)]
    for pattern, place in settings.rules:
        words += ["--override-tensor", f"{pattern}={place}"]
    if "--cache-ram" in known:  # else it keeps old prompts in memory, between two requests
        words += ["--cache-ram", "0"]
    return words + _draft_flags(settings, known)


def _draft_flags(settings: PeerSettings, known: str) -> list[str]:
    if settings.ngram:
        if settings.ngram not in known:
            raise PeerError(
                f"{settings.program} does not guess by {settings.ngram}: its --help does not list it"
            )
        return ["--spec-type", settings.ngram]
    if settings.draft is None and settings.head is None:
        return []
    words = ["--model-draft", str(settings.draft)] if settings.draft else []
    kind = f"draft-{settings.head or 'simple'}"
    if kind in known:  # since 2026 a draft model alone drafts nothing
        words += ["--spec-type", kind]
    elif settings.head:
        raise PeerError(f"{settings.program} does not run heads of this kind: its --help lists no {kind}")
    if settings.n_gpu_layers >= 0:
        words += ["--n-gpu-layers-draft", str(settings.n_gpu_layers)]
    if "--cache-type-k-draft" in known:
        words += ["--cache-type-k-draft", settings.draft_kv_type]
        words += ["--cache-type-v-draft", settings.draft_kv_type]
    if settings.draft_length is not None:
        longest = "--spec-draft-n-max" if "--spec-draft-n-max" in known else "--draft-max"
        words += [longest, str(settings.draft_length)]
    if settings.probabilistic:
        words += (
            ["--probabilistic"] if "--probabilistic" in known else ["--spec-draft-sampling", "probabilistic"]
        )
    return words
