"""How fast a pair would run: costs of both models and the acceptance of guesses -> tokens per second.

The arithmetic is the controller's own (`pace`), for guesses that are each accepted with the same probability:
a round of k guesses costs k evaluations of the draft and one of k + 1 tokens of the target, and yields
1 + a + a^2 + ... + a^k tokens. Plain decoding is among the choices, as it is when the pair runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from edgespec.commands.plan.model_cost import ModelCost, Places, guessing_head, head_cost, model_cost
from edgespec.commands.plan.rates import OnStage, Rates
from edgespec.core.pace.costs import from_measured
from edgespec.core.pace.row_costs import QUANTISED
from edgespec.core.pace.worth import best_length
from edgespec.core.values import LONGEST_DRAFT
from edgespec.errors import PlanError
from edgespec.pairs.placement import MAIN_MEMORY, Placement, place_of
from edgespec.pairs.settings import PairSettings
from edgespec.system.other_programs import BUSY_CORES
from edgespec_models.fit.allotment import ALL, ModelName
from edgespec_models.fit.fit import Fit
from edgespec_models.fit.need import RAM
from edgespec_models.gguf.header import Header
from edgespec_models.gguf.heads import Head
from edgespec_models.gguf.reading import BLOCK

ROUND_S = 0.0003  # of Python and numpy in a round, as measured (docs/performance.md)
OFF_BY = 0.3  # how far plans were from whole models in a comparison (docs/plan.md)
LARGEST_PLANNED = 16  # tokens of one evaluation that was measured; longer drafts are not planned


@dataclass(frozen=True, slots=True)
class SpeedAtAcceptance:
    """The speed at one acceptance. draft_length: 0 is plain decoding."""

    acceptance: float
    tok_per_s: float
    draft_length: int


@dataclass(frozen=True, slots=True)
class PairPlan:
    """How fast a pair would run here, at the beginning of a text."""

    target: ModelCost
    draft: ModelCost | None
    plain_tok_per_s: float  # the target alone
    speeds: tuple[SpeedAtAcceptance, ...]  # with speculation, by acceptance
    guesser: str = ""  # in words
    off_by: float = OFF_BY  # how far figures may be off, as a share

    @property
    def sentence(self) -> str:
        """Says how fast it would be, in a few words, with the first acceptance."""
        text = f"about {self.plain_tok_per_s:.0f} tok/s plain"
        if self.speeds and self.speeds[0].draft_length:
            return f"{text}, {self.speeds[0].tok_per_s:.0f} with {self.guesser}"
        return text + ("; guesses do not pay off here" if self.speeds else "")

    @property
    def busy(self) -> float:
        """Cores that other programs kept busy while it was measured."""
        return max(cost.busy for cost in (self.target, self.draft) if cost)

    @property
    def disturbed(self) -> bool:
        """Whether that made it look slower than it is."""
        return self.busy >= BUSY_CORES


def plan_pair(
    target: Sequence[Header],
    draft: Sequence[Header] | None,
    settings: PairSettings | None = None,
    *,
    fit: Fit | None = None,
    acceptances: Sequence[float] = (0.6, 0.8),
    on_stage: OnStage = lambda text: None,
    anew: bool = False,
    kept_only: bool = False,
) -> PairPlan:
    """Returns how fast a pair would run, measuring in some seconds what is unknown.

    target, draft: the headers of all parts of each file. fit: where they would lie; None: all of them where
    the settings put layers. acceptances: of one guess, each 0 to 1. anew: measure again what is known.
    kept_only: measure nothing. Raises PlanError.
    """
    settings = replace(settings or PairSettings(), n_gpu_layers=ALL)
    alone = replace(settings, rpc=(), tensor_split=())  # a draft stays on this machine
    found = [
        Rates(there, on_stage=on_stage, anew=anew, kept_only=kept_only)
        for there in (settings, alone, replace(alone, n_gpu_layers=0))
    ]
    beside = there = places(fit, "target", settings.placement, found[0], found[2])
    if draft:
        beside = places(fit, "draft", settings.draft_placement, found[1], found[2])
    costs, head, drafting = model_cost(target, there), guessing_head(target, draft), None
    if head:
        drafting = head_cost(target, draft, head, beside)
    elif draft:
        drafting = model_cost(draft, beside)
    return _plan(costs, drafting, acceptances, head)


def kept_plan(
    target: Sequence[Header],
    draft: Sequence[Header] | None,
    settings: PairSettings | None = None,
    *,
    fit: Fit | None = None,
    acceptances: Sequence[float] = (0.6, 0.8),
) -> PairPlan | None:
    """Returns the plan of a pair if this machine was measured before; None if not, or if none can be made."""
    try:
        return plan_pair(target, draft, settings, fit=fit, acceptances=acceptances, kept_only=True)
    except PlanError:
        return None


def places(
    fit: Fit | None, model: ModelName, placement: Placement, cards: Rates, main_memory: Rates
) -> Places:
    """Returns where a model's tensors would lie. fit: None if that is unknown."""
    need = fit.choice.needs.get(model) if fit else None
    if fit is None or need is None:
        return Places(cards)
    if set(need.devices) <= {RAM}:
        return Places(main_memory)
    layers = fit.choice.n_gpu_layers if model == "target" else fit.choice.draft_gpu_layers
    first = 0 if layers == ALL else need.n_layers - layers
    if model == "target" and fit.choice.cpu_moe is not None:
        placement = replace(placement, cpu_moe=fit.choice.cpu_moe)

    def here(name: str) -> bool:
        named, block = place_of(name, placement.rules), BLOCK.match(name)
        return (int(block[1]) < first if block else layers == 0) if named is None else named == MAIN_MEMORY

    return Places(cards, main_memory if first or placement.rules else None, here)


def _plan(
    target: ModelCost, draft: ModelCost | None, acceptances: Sequence[float], head: Head | None = None
) -> PairPlan:
    plain = 1 / (target.seconds[1] + ROUND_S)
    speeds = tuple(_speed(target, draft, a, head) for a in acceptances) if draft else ()
    return PairPlan(target, draft, plain, speeds, "its head" if head else "its draft")


def _speed(target: ModelCost, draft: ModelCost, acceptance: float, head: Head | None) -> SpeedAtAcceptance:
    # the build's kind matters only past the largest measured size
    prices = from_measured(QUANTISED, target.seconds).prices(LARGEST_PLANNED) + ROUND_S
    longest = min(
        LONGEST_DRAFT, LARGEST_PLANNED - 1, head.longest if head and head.longest else LONGEST_DRAFT
    )
    reach = tuple(acceptance**k for k in range(1, longest + 1))
    guess = draft.seconds[1]
    at_once = head is not None and head.kind == "dflash"  # all guesses take one evaluation
    gain, length = best_length(reach, prices, 0.0, -guess) if at_once else best_length(reach, prices, guess)
    return SpeedAtAcceptance(acceptance, gain / float(prices[1]), length)
