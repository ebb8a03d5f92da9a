"""The results of `edgespec verify`: one value, its verdict, and its texts for people and programs."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from edgespec.commands.table import wrapped
from edgespec.commands.verify.equality import BatchShape, complaint
from edgespec.commands.verify.samples import FIRST, ChiSquare
from edgespec.commands.verify.texts import SEEDED, Comparison

LOSSLESS, BROKEN, UNDECIDED = 0, 1, 3  # exit codes
BELIEVABLE = 0.2
"""The most that arithmetic may change in a logit, in standard deviations of a row.

The largest change seen of a sound build is 0.09 (Q8_0 after 560 tokens). A single lost cell, of 64 or of 560,
changes at least 0.12; three of four such faults change more than this limit.
"""
SEEN = 0.03  # share of wrongly judged guesses that the texts have to show: a rule that is wrong 1 time in 33
SHOWN = 5  # differences listed one by one


@dataclass(frozen=True, slots=True)
class Report:
    """All results on one pair."""

    target: str
    draft: str | None  # None if lookup alone guesses
    seconds: float  # what all of it took
    rng_seed: int
    prompts: int  # how many would have been compared
    left_out: int  # how many more do not fit into the context
    spread: float  # standard deviation of the target's logits, by which differences are judged
    greedy: tuple[Comparison, ...]
    seeded: tuple[Comparison, ...]
    fits: tuple[ChiSquare, ...]
    batches: tuple[BatchShape, ...]
    byte_identical: bool = False  # the pair was loaded so that no difference can be explained

    def complaints(self) -> list[str]:
        """Returns what is wrong, a phrase each."""
        limit, found = BELIEVABLE * self.spread, []
        for name, compared in (("greedy", self.greedy), ("seeded", self.seeded)):
            wrong = complaint(
                [c.difference for c in compared],
                identical=self.byte_identical,
                logits_differ_at_most=limit,
            )
            if wrong:
                found.append(f"of the {name} texts {wrong}")
        for fit in self.fits:
            if not fit.passed:
                found.append(
                    f"the first tokens drafted by {fit.way} are not drawn from the model's distribution "
                    f"(p = {fit.p_value:.1g})"
                )
        worst = max([s.logits_differ for s in self.batches] + [f.logits_differ for f in self.fits], default=0)
        if not worst <= limit:
            found.append(f"a logit of a batch is {worst:.3g} off, which is more than rounding explains")
        return found

    @property
    def visible(self) -> float:
        """The share of wrongly judged guesses that 9 of 10 such comparisons of texts would show; 1: none."""
        judged = sum(min(c.drafted, c.n_tokens) for c in (*self.greedy, *self.seeded))
        return 1 - float(0.1 ** (1 / judged)) if judged else 1.0

    def gaps(self) -> list[str]:
        """Returns what could not be checked, a phrase each."""
        found = []
        for name, compared in (("greedy", self.greedy), ("seeded", self.seeded)):
            if not compared:
                found.append(f"there was no time for {name} texts")
            elif not any(c.drafted for c in compared):
                found.append(f"nothing was guessed in the {name} texts")
        if not found and self.visible > SEEN:
            found.append(
                f"the texts are too few to find a rule that is wrong less often than 1 time in "
                f"{1 / self.visible:.0f}"
            )
        if not self.fits:
            found.append("there was no time for samples")
        elif not any(fit.visible < 1 for fit in self.fits):
            found.append("the samples were too few to detect anything")
        elif not any(fit.drafted for fit in self.fits):
            found.append("nothing was guessed in the samples")
        if not self.batches:
            found.append("there was no time, or no context, to compare batches with single tokens")
        return found

    @property
    def exit_code(self) -> int:
        return BROKEN if self.complaints() else UNDECIDED if self.gaps() else LOSSLESS

    def verdict(self) -> str:
        """Returns one sentence."""
        texts = (*self.greedy, *self.seeded)
        apart = sum(c.difference is not None for c in texts)
        if wrong := self.complaints():
            return f"NOT LOSSLESS: {'; '.join(wrong)}."
        if gaps := self.gaps():
            return f"NOT DECIDED: nothing wrong was found, but {', and '.join(gaps)}: allow more --seconds."
        if apart:
            return (
                f"LOSSLESS up to rounding: {apart} of {len(texts)} texts differ, each because "
                "a batch rounds differently from a single token, and the samples have the model's own "
                "distribution."
            )
        to_the_byte = ", to the byte by design" if self.byte_identical else ""
        return (
            f"LOSSLESS{to_the_byte}: all {len(texts)} texts are those without a draft, token for token, "
            "and the samples have the model's own distribution."
        )

    def as_dict(self) -> dict[str, Any]:
        """Returns every figure, ready for JSON: what is infinite or no number is None."""
        figures = {
            "verdict": self.verdict(),
            "exit_code": self.exit_code,
            "complaints": self.complaints(),
            "gaps": self.gaps(),
            **asdict(self),
        }
        return {name: _finite(value) for name, value in figures.items()}

    def lines(self) -> list[str]:
        """Returns the report in lines that the terminal has room for."""
        out = []
        for head, body in self._paragraphs():
            out += wrapped(head, rest="")
            for text in body:
                out += wrapped(text, "  ", "    " if text.startswith("- ") else "  ")
            out.append("")
        return [*out, *wrapped(self.verdict(), rest="")]

    def _paragraphs(self) -> Iterator[tuple[str, list[str]]]:
        who = f"guesses by {self.draft}" if self.draft else "no draft model: lookup alone is verified"
        yield f"{self.target}, {who}; {self.seconds:.0f} s", []
        yield self._texts("Greedy text", self.greedy, "temperature 0")
        chance = f"temperature {SEEDED.temperature:g}, top-p {SEEDED.top_p:g}, a seed for each prompt"
        yield self._texts("Seeded text", self.seeded, chance)
        yield self._distribution()
        yield self._bytes()

    def _texts(self, name: str, compared: Sequence[Comparison], how: str) -> tuple[str, list[str]]:
        apart = [c for c in compared if c.difference]
        if not compared:
            return f"{name}: not compared, for lack of time.", []
        same = f"{len(apart)} of {len(compared)} differ" if apart else "the same with and without a draft"
        kinds, drafters = dict.fromkeys(c.kind for c in compared), dict.fromkeys(str(c.way) for c in compared)
        prompts = len({c.prompt for c in compared})
        drafted, accepted = sum(c.drafted for c in compared), sum(c.accepted for c in compared)
        fewer = f" ({self.prompts} with more time)" if prompts < self.prompts else ""
        fewer += f" ({self.left_out} more do not fit the context)" if self.left_out else ""
        body = [
            f"{_counted(len(compared), 'text')} of up to {max(c.n_tokens for c in compared)} tokens after "
            f"{_counted(prompts, 'prompt')}{fewer}: {', '.join(kinds)}; {how}.",
            f"Drafted by {', '.join(drafters)}: {accepted:,} of {drafted:,} guesses accepted. Compared token "
            "by token, so there are no false alarms.",
        ]
        if self.visible < 1:
            body.append(
                f"9 of 10 rules that judge 1 guess in {1 / self.visible:.0f} wrongly would be found, greedy "
                "and seeded texts together."
            )
        for c in apart[:SHOWN]:
            assert c.difference
            d = c.difference
            cause = "rounding: each run's replay gives its own token" if d.explained else "NOT EXPLAINED"
            body.append(
                f"- {c.kind}, {c.way}, token {d.at}: the logits of the two tokens are {abs(d.margin):.3g} "
                f"apart, those of the two rows up to {d.logits_differ:.3g}; {cause}."
            )
        return f"{name}: {same}.", body

    def _distribution(self) -> tuple[str, list[str]]:
        if not self.fits:
            return "Sampled text: not tested, for lack of time.", []
        passed = all(fit.passed for fit in self.fits)
        verdict = "no deviation from the model's own distribution" if passed else "IT DEVIATES"
        body = [
            f"Chi-square of the first {FIRST} tokens, with block verification at temperature 1, against what "
            "the model's own logits say, token by token."
        ]
        for fit in self.fits:
            how = f"{fit.way}, {fit.kind}, top-k {fit.sampling.top_k}"
            body.append(
                f"- Drafted by {how}: {fit.samples:,} samples in {fit.cells} cells, p = {fit.p_value:.2g}; "
                f"{fit.accepted:,} of {fit.drafted:,} guesses accepted. {_power(fit)}"
            )
        rate = sum(fit.false_alarm for fit in self.fits)
        body.append(
            f"Fails at p < {self.fits[0].false_alarm:.0e}: one in {1 / rate:,.0f} runs of a correct method "
            f"is a false alarm. Repeat this run with --rng-seed {self.rng_seed}."
        )
        return f"Sampled text: {verdict}.", body

    def _bytes(self) -> tuple[str, list[str]]:
        name = "Batches and single tokens"
        if not self.batches:
            return f"{name}: not compared, for lack of time or context.", []
        unlike = [s for s in self.batches if not s.identical]
        held = " and ".join(str(n) for n in dict.fromkeys(s.held for s in self.batches))
        how_often = "" if not unlike else "partly " if len(unlike) < len(self.batches) else "never "
        body = [f"{_counted(len(self.batches), 'size')} of batches, after {held} tokens."]
        if unlike:
            sizes = ", ".join(f"{s.size} after {s.held}" for s in unlike)
            body += [
                f"Not identical: {sizes} (up to {max(s.logits_differ for s in unlike):.2g} in a logit).",
                "This is information, not an error: where the bytes differ, two almost equal tokens may "
                "swap places. A logit's standard deviation here is "
                f"{self.spread:.2g}; a difference past {BELIEVABLE * self.spread:.2g} would be an error.",
            ]
        return f"{name}: {how_often}the same bytes.", body


def _counted(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def _power(fit: ChiSquare) -> str:
    if not fit.visible < 1:
        return "These are too few to detect anything."
    sentence = f"9 of 10 deviations of {fit.visible:.2g} or more (total variation) would be found."
    if fit.arithmetic > 1e-9:
        sentence += f" Batches alone shift it by {fit.arithmetic:.1g}, which is allowed for."
    return sentence


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
