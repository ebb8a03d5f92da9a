"""What `edgespec pull` and lists of pairs say about one: does it fit, how fast would it be?

Asks llama.cpp about memory (half a second); gives a speed only if `edgespec plan` has measured it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from edgespec.commands.plan.heads import acceptance_of
from edgespec.commands.plan.pair_plan import PairPlan, kept_plan
from edgespec.commands.plan.stub import write_stub
from edgespec.errors import EdgeSpecError
from edgespec.memory.at_load import pair_fit
from edgespec.pairs.settings import PairSettings
from edgespec_models.fit.fit import Fit
from edgespec_models.fit.need import Need
from edgespec_models.gguf.header import Header


def fit_of_heads(
    target: Sequence[Header],
    draft: Sequence[Header] | None,
    settings: PairSettings | None = None,
    projector: Need | None = None,
) -> Fit | None:
    """Returns the memory that a pair takes, by its headers alone; None if that is impossible."""
    with tempfile.TemporaryDirectory(prefix="edgespec-") as folder:
        try:
            first = write_stub(Path(folder), "target", target)
            second = write_stub(Path(folder), "draft", draft) if draft else None
            return pair_fit(first, second, settings or PairSettings(), projector=projector)
        except (EdgeSpecError, OSError):
            return None


def expectation(
    name: str, heads: Sequence[Sequence[Header]], *, draft: str | None = None
) -> tuple[Fit | None, list[str]]:
    """Returns whether a pair fits the memory, None if unknown, and what to say about it.

    name, draft: as they were given. heads: of all parts of the target and, if there is one, of the draft.
    """
    target, small = heads[0], heads[1] if len(heads) > 1 else None
    fit = fit_of_heads(target, small)
    said = [f"memory  {fit.sentence('it')}"] if fit else []
    expected, assumed = acceptance_of(name)
    known = kept_plan(target, small, acceptances=(expected,))
    command = f"edgespec plan {name}" + (f" --draft {draft}" if draft else "")
    if known is None:
        return fit, [*said, f"speed   `{command}` says how fast it would run here"]
    return fit, [*said, f"speed   {speed_sentence(known, assumed=assumed, command=command)}"]


def speed_sentence(plan: PairPlan, *, assumed: bool, command: str) -> str:
    """Says how fast a pair would run, in a few words. command: which plans it."""
    text = f"about {plan.plain_tok_per_s:.0f} tok/s plain"
    if plan.speeds and plan.speeds[0].draft_length:
        text += f", {plan.speeds[0].tok_per_s:.0f} with speculation"
        if assumed:
            text += f" if {plan.speeds[0].acceptance:.0%} of the guesses are accepted"
    elif plan.speeds:
        text += "; guesses do not pay off here"
    if plan.disturbed:
        return (
            f"{text}, measured while other programs kept {plan.busy:.1f} cores busy, so probably faster: "
            f"`{command}` measures it again"
        )
    return f"{text} (measured here by `edgespec plan`, up to {plan.off_by:.0%} off)"
