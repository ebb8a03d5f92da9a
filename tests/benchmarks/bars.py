"""The project's bars: EdgeSpec against plain decoding, its own fixed lengths, and llama-server, in turn.

    python tests/benchmarks/bars.py FOLDER --peer PATH/llama-server [--newer PYTHON] [--sizes ...]
        [--qualities ...] [--temperatures 0 1] [--prompts 4] [--prompt-tokens 1000] [-n 96] [--lengths 3 7]
        [--peer-lengths 2 5] [--flash on off] [--json FILE]

Pairs are made by `pairs.py`, in FOLDER. All lines answer every prompt in random order, with empty
caches; a speed is that of decoding, first token excluded; ratios are geometric means over prompts with
their 95 % interval. The best of several lengths is chosen on one half of the prompts and compared on the
other. Prompts are held-out ones of the embedded pair. With the worst draft the model drafts alone and is
compared with plain decoding only, as the goal of never being slower asks. With `--qualities mtp` there is no
draft: the MTP block in the target's file guesses, for both programs, and lengths go to 8.

PYTHON has xllamacpp, a wheel of a newer llama.cpp: a second peer, whose drafts are judged by p/q above
temperature 0. Peers run with flash attention as they come, or with each of --flash; all of it counts where
a peer is taken at its best.

EdgeSpec starts each table knowing only the costs of the pair. Contests are reported for all prompts, and
for those after the first: what it learned is kept, so a pair is new only once.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
from numpy.typing import NDArray
from pairs import HEAD, QUALITIES, draft_file, target_file
from peer_command import NAME, PeerSettings
from peer_taker import PeerTaker

from edgespec.core.values import DrafterName
from edgespec.engine.pair import Pair
from edgespec.measure.figures import Ratio, Sample, against_best, combine, speedup, summary
from edgespec.measure.in_turn import Measured, measure
from edgespec.measure.lines import OURS, PLAIN, Line, Mode, units_for
from edgespec.measure.prompts import Prompt, tokenize
from edgespec.measure.takers import Asked, PairTaker
from edgespec.pairs.settings import PairSettings
from edgespec.sampling.sampler import Sampling
from edgespec.system.cores import threads_wanted
from edgespec_models import tiny

LENGTHS = (1, 2, 3, 5, 7, 11, 15)  # with one token more, as groups of rows end: 4, 8, 12, 16
PEER_LENGTHS = (2, 5, 7, 11)  # and 3, which is its default
HEAD_LENGTHS, PEER_HEAD_LENGTHS = (1, 2, 3, 5, 8), (1, 2, 5, 8)
PROMPT_TOKENS = 400  # longer ones are cut at the front
FILLING = 24  # prompts that stand before those that are to be long
N_CTX = 2048
NEWER = "xllamacpp"
FLASH = {"auto": None, "on": True, "off": False}


def prompts(n: int) -> tuple[Prompt, ...]:
    """Returns n held-out prompts, evenly over the kinds."""
    lines = tiny.held_out_prompts_path().read_text(encoding="utf-8").splitlines()
    held_out = [json.loads(lines[(2 * i + 1) * len(lines) // (2 * n)]) for i in range(n)]
    return tuple(Prompt(f"p{i}", held["kind"], held["prompt"], raw=True) for i, held in enumerate(held_out))


def prompt_ids(pair: Pair, asking: Sequence[Prompt], n_tokens: int | None) -> dict[str, NDArray[np.int32]]:
    """Returns the tokens of the prompts; n_tokens: of each, with as many others before it as that takes."""
    own = tokenize(pair, asking, raw=True)
    if n_tokens is None:
        return {name: ids[-PROMPT_TOKENS:] for name, ids in own.items()}
    others = np.concatenate(list(tokenize(pair, prompts(FILLING), raw=True).values()))
    filling = np.tile(others, -(-n_tokens // others.size) + 1)
    begins = range(0, others.size, -(-others.size // len(own)))
    return {
        name: np.concatenate([filling[begin : begin + n_tokens], ids])[-n_tokens:]
        for begin, (name, ids) in zip(begins, own.items(), strict=True)
    }


def lengths(quality: str, chosen: argparse.Namespace) -> tuple[Sequence[int], Sequence[int]]:
    """Returns the fixed lengths that are tried: ours, and the peers' besides their default."""
    usual = (HEAD_LENGTHS, PEER_HEAD_LENGTHS) if quality == HEAD else (LENGTHS, PEER_LENGTHS)
    wanted = chosen.lengths, chosen.peer_lengths
    return tuple(given if given is not None else of for given, of in zip(wanted, usual, strict=True))  # type: ignore[return-value]


def peers_of(
    chosen: argparse.Namespace, settings: PeerSettings, opened: ExitStack
) -> dict[str, PeerSettings]:
    """Returns each peer with each kind of attention, by what its lines are called."""
    programs = {NAME: chosen.peer} if chosen.peer else {}
    if chosen.newer:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory()))
        server = Path(__file__).with_name("xllamacpp_server.py").resolve()
        program = folder / NEWER
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(chosen.newer)} {shlex.quote(str(server))} "$@"\n')
        program.chmod(0o755)
        programs[NEWER] = program
    return {
        name if flash == "auto" else f"{name} -fa {flash}": replace(
            settings, program=program, flash_attention=FLASH[flash], probabilistic=name == NEWER
        )
        for name, program in programs.items()
        for flash in chosen.flash
    }


def lines(mode: Mode, quality: str, peers: Sequence[str], chosen: argparse.Namespace) -> list[Line]:
    """Returns what is compared."""
    found = [Line(mode, PLAIN, plain=True), Line(mode, OURS)]
    if quality == "worst":
        return found
    ours, theirs = lengths(quality, chosen)
    found += [Line(mode, f"{OURS} n={k}", draft_length=k) for k in ours]
    for name in peers:
        found += [Line(mode, f"{name} plain", plain=True), Line(mode, name)]
        found += [Line(mode, f"{name} n={k}", draft_length=k) for k in theirs]
    return found


def run(
    size: str, quality: str, temperature: float, chosen: argparse.Namespace
) -> tuple[Measured, str, Mapping[str, PeerSettings]]:
    """Measures one pair at one temperature; returns the samples, a line on its costs, and the peers."""
    mode: Mode = "greedy" if temperature == 0 else "sampled"
    target = target_file(chosen.folder, size, quality)
    draft = None if quality == HEAD else draft_file(chosen.folder, size, quality)
    n_ctx = max(N_CTX, (chosen.prompt_tokens or 0) + chosen.max_tokens + 64)
    with ExitStack() as opened:
        pair = opened.enter_context(Pair(target, draft, PairSettings(n_ctx=n_ctx, remember=False)))
        never = {token: -float("inf") for token in pair.target.end_tokens}  # texts of one length
        sampling = Sampling(temperature=temperature, top_p=1.0, min_p=0.0, logit_bias=never)
        drafter: DrafterName = "model" if quality == "worst" else "auto"
        asked = Asked(sampling, chosen.max_tokens, seed=1, drafter=drafter)
        costs = pair.costs()
        one = costs.target.seconds(1)
        shape = ", ".join(f"{n}: {costs.target.seconds(n) / one:.2f}" for n in (2, 3, 4, 6, 8, 12, 16))
        about = f"t(1) {one * 1e3:.1f} ms, draft {costs.draft.seconds(1) / one:.3f}, t(n)/t(1) {shape}"
        asking = prompts(chosen.prompts)
        tokens = prompt_ids(pair, asking, chosen.prompt_tokens)
        ours = PairTaker(pair, asked, tokens, lambda: False)
        settings = PeerSettings(
            program=Path(),
            target=target,
            draft=draft,
            head=pair.head.variant if pair.head else None,
            threads=threads_wanted(),
            n_ctx=n_ctx,
        )
        peers = peers_of(chosen, settings, opened)
        wanted = lines(mode, quality, [*peers], chosen)
        theirs: dict[str, PairTaker | PeerTaker] = {}
        for name, of in peers.items():
            own = [line for line in wanted if peer_of(line, peers) == name]
            taker = theirs[name] = opened.enter_context(PeerTaker(of, own, asked, tokens, lambda: False))
            taker.warm_up(own)
        units = units_for(asking, wanted, repeats=1, rng=np.random.default_rng(1))
        ours(wanted[0], units[0])  # warm
        taken = measure(
            units,
            lambda line, unit: theirs.get(peer_of(line, peers), ours)(line, unit),
            budget_s=chosen.seconds,
        )
        return taken, about, peers


def peer_of(line: Line, peers: Mapping[str, PeerSettings]) -> str:
    """Returns the peer that a line is of; "" for a line of ours."""
    return max((name for name in peers if line.name.startswith(name)), key=len, default="")


def told(ratio: Ratio | None) -> str:
    """Writes a ratio with its interval."""
    if ratio is None:
        return "-"
    return f"{ratio.value:.2f}" + (f" ({ratio.low:.2f} to {ratio.high:.2f})" if ratio.low else "")


def whole_requests(samples: Sequence[Sample]) -> Ratio | None:
    """Returns how many times as fast whole requests were as plain ones, prompts included."""
    plain = {sample.unit: sample.wall_s for sample in samples if sample.line == PLAIN}
    return combine([
        (sample.prompt, plain[sample.unit] / sample.wall_s) for sample in samples if sample.line == OURS
    ])  # fmt: skip


def report(
    size: str,
    quality: str,
    temperature: float,
    measured: Measured,
    about: str,
    peers: Sequence[str],
    chosen: argparse.Namespace,
) -> None:
    """Prints one table."""
    mode: Mode = "greedy" if temperature == 0 else "sampled"
    busy = max(measured.others, default=0.0)
    what = f"{HEAD} head" if quality == HEAD else f"{quality} draft"
    print(f"\n{size}, {what}, temperature {temperature:g}: {about}; others' load {busy:.1f} cores")
    for line in lines(mode, quality, peers, chosen):
        figures = summary(measured.samples, mode, line.name, PLAIN)
        accepted = f"{figures.acceptance_rate:.2f}" if figures.acceptance_rate is not None else "-"
        tail = "" if figures.seconds is None else ", ".join(
            f"{name} {share / sum(figures.seconds.values()):.0%}" for name, share in figures.seconds.items()
        )  # fmt: skip
        speed = f"{figures.tok_per_s or 0:7.1f} tok/s"
        print(f"  {line.name:24} {speed}  {told(figures.speedup):22} {accepted:5} {tail}")
    of_ours, of_theirs = lengths(quality, chosen)
    fixed = [f"{OURS} n={k}" for k in of_ours]
    theirs = [name + end for name in peers for end in ("", " plain", *(f" n={k}" for k in of_theirs))]
    first = measured.samples[0].unit
    known = [sample for sample in measured.samples if sample.unit != first]
    for name, candidates in (("best fixed length", [PLAIN, *fixed]), ("the peers at their best", theirs)):
        for which, samples in (("", measured.samples), (", first prompt apart", known)):
            contest = against_best(samples, mode, OURS, candidates)
            if contest:
                print(f"  {OURS} / {name} {contest.chosen}{which}: {told(contest.ratio)}")
    for name in peers if quality != "worst" else ():
        print(f"  {OURS} / {name} as it comes: {told(speedup(measured.samples, OURS, name))}")
    print(f"  whole requests, {OURS} / {PLAIN}: {told(whole_requests(measured.samples))}")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--peer", type=Path)
    parser.add_argument("--newer", help="a Python that has xllamacpp")
    parser.add_argument("--flash", nargs="+", choices=[*FLASH], default=["auto"])
    parser.add_argument("--lengths", type=int, nargs="*")
    parser.add_argument("--peer-lengths", type=int, nargs="*")
    parser.add_argument("--sizes", nargs="+", default=["0.6B-F16", "1.1B-Q4_0"])
    parser.add_argument("--qualities", nargs="+", choices=(*QUALITIES, HEAD), default=list(QUALITIES))
    parser.add_argument("--temperatures", nargs="+", type=float, default=[0.0, 1.0])
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--prompt-tokens", type=int, help="tokens of each prompt (default: as they are)")
    parser.add_argument("--seconds", type=float, default=600, help="budget of each pair and temperature")
    parser.add_argument("-n", "--max-tokens", type=int, default=96)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    everything = []
    for size in chosen.sizes:
        for quality in chosen.qualities:
            for temperature in chosen.temperatures:
                measured, about, peers = run(size, quality, temperature, chosen)
                report(size, quality, temperature, measured, about, [*peers], chosen)
                everything.append({
                    "size": size, "quality": quality, "temperature": temperature, "costs": about,
                    "samples": [asdict(sample) for sample in measured.samples], "others": measured.others,
                })  # fmt: skip
                if chosen.json:
                    chosen.json.write_text(json.dumps(everything), encoding="utf-8")


if __name__ == "__main__":
    main()
