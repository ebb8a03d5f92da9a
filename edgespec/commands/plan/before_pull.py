"""What `edgespec pull` and lists of pairs say about one: does it fit, how fast would it be?

Asks llama.cpp about memory (half a second); gives a speed only if `edgespec plan` has measured it.
"""

from collections.abc import Sequence

from edgespec.commands.plan.header_fit import fit_of_heads
from edgespec.commands.plan.heads import acceptance_of
from edgespec.commands.plan.pair_plan import PairPlan, kept_plan
from edgespec_models.fit.fit import Fit
from edgespec_models.fit.need import Need
from edgespec_models.gguf.facts import facts_of
from edgespec_models.gguf.header import Header


def expectation(
    name: str,
    heads: Sequence[Sequence[Header]],
    *,
    draft: str | None = None,
    projector: Need | None = None,
) -> tuple[Fit | None, list[str]]:
    """Returns whether a pair fits the memory, None if unknown, and what to say about it.

    name, draft: as they were given. heads: of all parts of the target and, if there is one, of the draft.
    projector: what the file takes with which it reads pictures.
    """
    target, small = heads[0], heads[1] if len(heads) > 1 else None
    fit = fit_of_heads(target, small, projector=projector)
    said = [f"memory  {fit.sentence('it')}"] if fit else []
    expected, assumed = acceptance_of(name)
    known = kept_plan(target, small, fit=fit, acceptances=(expected,))
    command = f"edgespec plan {name}" + (f" --draft {draft}" if draft else "")
    if known is None:
        return fit, [*said, f"speed   `{command}` says how fast it would run here"]
    where = ", ".join(filter(None, [facts_of(target[0]).quantisation, *(fit.gave_up if fit else ())]))
    speed = _speed(known, assumed=assumed, command=command)
    return fit, [*said, f"speed   {': '.join(filter(None, [where, speed]))}"]


def _speed(plan: PairPlan, *, assumed: bool, command: str) -> str:
    """Says how fast a pair would run, in a few words. command: which plans it."""
    text = plan.sentence
    if assumed and plan.speeds and plan.speeds[0].draft_length:
        text += f" if {plan.speeds[0].acceptance:.0%} of the guesses are accepted"
    if plan.disturbed:
        return (
            f"{text}, measured while other programs kept {plan.busy:.1f} cores busy, so probably faster: "
            f"`{command}` measures it again"
        )
    return f"{text} (measured here by `edgespec plan`, up to {plan.off_by:.0%} off)"
