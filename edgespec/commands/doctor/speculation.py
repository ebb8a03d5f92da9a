"""Whether speculation is on, and pays: a pair with and without it, for some seconds."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from edgespec.commands.doctor.findings import Finding, good, note, problem
from edgespec.pairs.settings import PairSettings
from edgespec.system.json_child import ChildDiedError, JsonChild
from edgespec.system.other_programs import BUSY_CORES

TOKENS = 48  # of one measured answer
ENOUGH_GUESSES, ENOUGH_PROMPTS = 30, 4  # for a statement on whether it pays
LONGER = "--seconds 60 measures longer"


def speculation(target: Path, draft: Path | None, settings: PairSettings, seconds: float) -> list[Finding]:
    """Runs the pair with and without speculation for about `seconds` after loading."""
    pair = {"target": str(target), "draft": str(draft) if draft else None, "settings": asdict(settings)}
    with JsonChild("edgespec.measure.short_run") as child:
        try:
            return judged(child.ask({**pair, "seconds": seconds, "tokens": TOKENS}))
        except ChildDiedError as error:
            return judged({"error": str(error)})


def judged(measured: dict[str, Any]) -> list[Finding]:
    """Returns what a measurement means."""
    if reason := measured.get("error"):
        return [problem("speculation", f"the pair cannot be run: {reason}", "docs/doctor.md")]
    if not measured["prompts"] or measured["plain_tok_per_s"] is None:
        return [note("speculation", "nothing could be measured in this time", LONGER, **measured)]
    n, accepted = measured["drafted"], measured["accepted"]
    if not n:
        text = "speculation is on, and nothing was guessed: guesses were found not to pay off here"
        return [note("speculation", text, _costs(measured), drafted=0)]
    guessers = {name: n for name, n in measured["sources"].items() if n and name != "target"}
    by = ", ".join(f"{name} {n}" for name, n in sorted(guessers.items()))
    text = f"speculation is on: {n} token{'s'[: n != 1]} guessed, {accepted} accepted"
    on = good("speculation", f"{text} ({by})" if by else text, drafted=n, accepted=accepted)
    return [on, _pays(measured)]


def _pays(measured: dict[str, Any]) -> Finding:
    """Says whether it pays, if the interval of the speed-up leaves no doubt."""
    n, ratio = measured["prompts"], measured["speedup"] or {}
    text = f"{measured['tok_per_s']:.1f} tok/s with speculation, {measured['plain_tok_per_s']:.1f} without, "
    text += f"{n} prompt{'s'[: n != 1]}"
    if measured["others"] >= BUSY_CORES:
        text += f"; other programs kept {measured['others']:.1f} cores busy during it"
    if measured["drafted"] < ENOUGH_GUESSES or n < ENOUGH_PROMPTS or ratio.get("low") is None:
        text += ": too little was measured to say whether it pays off"
        return note("speculation", text, LONGER, **measured)
    text += f": {ratio['value']:.2f} times (95 %: {ratio['low']:.2f} to {ratio['high']:.2f})"
    if ratio["low"] > 1:
        return good("speculation", text, **measured)
    verdict, remedy = "it is unclear whether it pays off here", LONGER
    if ratio["high"] < 1:
        verdict, remedy = "it does not pay off here", "use --no-draft with this pair"
    return note("speculation", f"{text}: {verdict}", f"{remedy}; {_costs(measured)}", **measured)


def _costs(measured: dict[str, Any]) -> str:
    """Returns what decides whether guesses pay, as measured, and the page on it."""
    one, four, rate = measured["target_s"]["1"], measured["target_s"]["4"], measured["acceptance_rate"]
    guess = f"a guess {measured['draft_s'] / one:.0%} of that, " if measured["draft_s"] else ""
    accepted = "" if rate is None else f", {rate:.0%} of the guesses were accepted"
    facts = f"a token takes {1000 * one:.1f} ms, {guess}four tokens at once {four / one:.1f} times that"
    return f"{facts}{accepted}: docs/doctor.md#when-guesses-do-not-pay"
