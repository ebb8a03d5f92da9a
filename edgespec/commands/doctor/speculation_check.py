"""Is speculation really on, and does it pay here? Measured on the pair."""

from typing import Any

from edgespec.commands.doctor.findings import Finding, good, note, problem
from edgespec.system.other_programs import BUSY_CORES

LIGHT_S = 0.008  # a token of the target; below that, Python's part of a round shows
ENOUGH_GUESSES, ENOUGH_PROMPTS = 30, 4  # for a statement on whether it pays


def judged(said: dict[str, Any], *, has_draft: bool) -> list[Finding]:
    """Returns what a measurement means."""
    if reason := said.get("error") or said.get("broken"):
        return [problem("speculation", f"the pair cannot be run: {reason}", "see the findings above it")]
    if not said["prompts"] or said["plain_tok_per_s"] is None:
        remedy = "allow more time with --seconds"
        return [note("speculation", "nothing could be measured in this time", remedy, **said)]
    found = [_on(said, has_draft)]
    if said["drafted"]:
        found.append(_pays(said))
    return found


def _on(said: dict[str, Any], has_draft: bool) -> Finding:
    if not said["drafted"]:
        text = "speculation is on, and nothing was guessed: guesses were found not to pay off here"
        return note("speculation", text, _why_not(said), drafted=0)
    n = said["drafted"]
    text = f"speculation is on: {n} token{'s'[: n != 1]} guessed, {said['accepted']} accepted"
    guessers = {name: n for name, n in said["sources"].items() if n and name != "target"}
    if guessers:
        text += f" ({', '.join(f'{name} {n}' for name, n in sorted(guessers.items()))})"
    return good("speculation", text, drafted=said["drafted"], accepted=said["accepted"], has_draft=has_draft)


def _pays(said: dict[str, Any]) -> Finding:
    """Says whether it pays, if the interval of the speed-up leaves no doubt."""
    n, ratio = said["prompts"], said["speedup"] or {}
    speeds = f"{said['tok_per_s']:.1f} tok/s with speculation, {said['plain_tok_per_s']:.1f} without"
    over = f", {n} prompt{'s'[: n != 1]}"
    if said["others"] >= BUSY_CORES:
        over += f"; other programs kept {said['others']:.1f} cores busy meanwhile"
    if said["drafted"] < ENOUGH_GUESSES or n < ENOUGH_PROMPTS or ratio.get("low") is None:
        text = f"too little was measured to say whether it pays off: {speeds}{over}"
        return note("speculation", text, "allow more time, for example --seconds 60", **said)
    text = f"{speeds}: {ratio['value']:.2f} times (95 %: {ratio['low']:.2f} to {ratio['high']:.2f}){over}"
    if ratio["low"] > 1:
        return good("speculation", text, **said)
    if ratio["high"] < 1:
        remedy = f"use --no-draft, or --drafter none, with this pair; {_why_not(said)}"
        return note("speculation", f"{text}: it does not pay off here", remedy, **said)
    remedy = f"--seconds 60 tells more; {_why_not(said)}"
    return note("speculation", f"{text}: it is unclear whether it pays off here", remedy, **said)


def _why_not(said: dict[str, Any]) -> str:
    """Returns what prevents it, by the measured costs."""
    one, four = said["target_s"]["1"], said["target_s"]["4"]
    if one < LIGHT_S:
        return (
            f"a token takes {1000 * one:.1f} ms here: so light a target leaves nothing to gain; try a "
            "pair of your own, or the embedded pair at the cost of a real one: --grow 0.6B-F16"
        )
    if said["draft_s"] and said["draft_s"] > 0.3 * one:
        return (
            f"a guess costs {said['draft_s'] / one:.0%} of a token of the target: take a smaller draft, or a "
            "larger target"
        )
    if four > 2.5 * one:
        return (
            f"checking four tokens at once costs {four / one:.1f} times one here: fewer guesses pay on this "
            "processor; F16 or Q8_0 weights, or a graphics card, check several at once for less"
        )
    rate = said["acceptance_rate"]
    if rate is not None and rate < 0.5:
        return f"{rate:.0%} of the guesses were accepted: a draft closer to the target would do better"
    return "`edgespec bench --sweep` shows for which texts and draft lengths it pays off"
