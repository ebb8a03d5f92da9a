"""The speculation panel: what the draft gains, while it does."""

import math
import textwrap
from collections import Counter
from dataclasses import dataclass

from rich.filesize import decimal
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Sparkline, Static

from edgespec.client.answer import Info
from edgespec.core.values import BreakEven
from edgespec_tui.terminal.shown_text import Content
from edgespec_tui.widgets.live_figures import ESTIMATED_FROM, NAMES, LiveFigures

NOTHING = "-"
EXACT = {"distribution": "in distribution", "bytes": "to the byte"}
NAME_WIDTH, VALUE_WIDTH = 11, 20
LINE_BAR = 8  # characters of a bar in the panel's line
HARD = 0.7  # share of right guesses; a usual draft is about as good
NOTABLE = 0.1
SLIGHT = 1.05  # times plain speed


@dataclass(frozen=True, slots=True)
class MeasuredSpeedUp:
    """A speed-up measured against plain decoding: tokens a second, with a draft and without."""

    speculative: float
    plain: float
    error: float  # standard error of the logarithm of the speed-up

    @property
    def speedup(self) -> float:
        return self.speculative / self.plain


@dataclass(frozen=True, slots=True)
class PanelState:
    """What the panel shows besides an answer's figures. used: tokens in the context."""

    info: Info | None = None
    speculation: bool = True
    used: int | None = None
    measured: MeasuredSpeedUp | None = None
    instructions: bool = False  # the system prompt has those of the project


def bar(share: float, width: int) -> str:
    """Returns how full something is, in so many characters: empty and full ones are seen as such."""
    inner = min(max(round(width * share), share > 0), width - (share < 1))
    return "█" * inner + "░" * (width - inner)


def in_ten(share: float) -> str:
    """Returns how often that is, as people say it."""
    n = math.ceil(10 * share - 0.05)
    return f"{n} times in 10" if n < 10 else "nearly always"


def odds_against(even: BreakEven | None) -> str:
    """Says why guesses hardly pay with a pair, and what would change it; "" if they may well."""
    if even is None or even.least < HARD:
        return ""
    guess = f", and a guess {even.guess:.0%} of one" if even.guess >= NOTABLE else ""
    need = "no guess can pay" if even.least >= 1 else f"guesses have to be right {in_ten(even.least)} to pay"
    sentence = f"Two tokens cost {even.two:.1f} times one here{guess}: {need}."
    if even.least - even.least_free >= NOTABLE:
        sentence += f" With a draft that costs next to nothing, {in_ten(even.least_free)}."
    return f"{sentence} `edgespec plan` says which models would gain here."


def odds_shown(figures: LiveFigures | None, info: Info | None) -> str:
    """Says why guesses do not pay, below an answer in which they did not."""
    unknown = figures is not None and figures.drafted > 0 and figures.speedup is None  # a short answer
    gains_little = figures is not None and not unknown and (figures.speedup or 1.0) < SLIGHT
    if not (gains_little and info and figures and figures.speculation):
        return ""
    return odds_against(info.break_even) if figures.n_tokens >= ESTIMATED_FROM or figures.over else ""


def rows_of(figures: LiveFigures | None, state: PanelState) -> list[tuple[str, str]]:
    """Returns the lines of the panel: name, value."""
    now = figures and figures.shown_per_s()
    rows = [("speed", f"{now:.1f} tok/s" if now else NOTHING)]
    if state.info and state.info.speculates:
        rate = figures.acceptance_rate if figures else None
        mean = figures.mean_accepted_length if figures else None
        rows += [
            ("accepted", f"{rate:.0%} of guesses" if rate is not None else NOTHING),
            ("per check", f"{mean:.2f} tokens" if mean else NOTHING),
            ("draft", (figures.why() if figures else "") or NOTHING),
        ]
        if exact := EXACT.get(state.info.exact):
            rows.append(("exact", exact))
    return rows + _context(state)


def gains(figures: LiveFigures | None, state: PanelState) -> list[tuple[str, str]]:
    """Returns the known speed-ups: how much, and who says so. A measured one comes first."""
    found = []
    if state.measured:
        found.append((f"{state.measured.speedup:.2f}x", "measured"))
    if figures and (estimated := figures.speedup):
        found.append((f"{estimated:.2f}x", "estimated"))
    return found


def _context(state: PanelState) -> list[tuple[str, str]]:
    found = []
    n_ctx = state.info.n_ctx if state.info else None
    if state.used is not None:
        of = f" of {n_ctx:,}" if n_ctx else ""
        share = f" ({state.used / n_ctx:.0%})" if n_ctx else ""
        found.append(("context", f"{state.used:,}{of}{share}"))
        if n_ctx:
            found.append(("", bar(state.used / n_ctx, VALUE_WIDTH)))
    elif n_ctx:
        found.append(("context", f"{n_ctx:,} tokens"))
    if state.info and state.info.memory:
        found.append(("memory", decimal(state.info.memory)))
    if state.info and state.info.card:
        found.append(("card", state.info.card))
    if state.instructions:
        found.append(("project", "AGENTS.md is used"))
    return found


class SpeculationPanel(Vertical):
    """At the side if there is room; else one line."""

    def compose(self) -> ComposeResult:
        yield Static("Speculation", id="panel-title")
        yield Static("", id="panel-lead")
        yield Static("", id="panel-rows")
        yield Sparkline([0.0, 0.0], id="sparkline")
        yield Static("", id="origins")
        yield Static("", id="panel-odds")
        yield Static("", id="panel-line")

    def on_mount(self) -> None:
        self._shown: dict[str, Content] = {}

    def show(self, figures: LiveFigures | None, state: PanelState) -> None:
        """Shows figures as they are now."""
        info = state.info
        on = "on" if state.speculation else "off"
        speculates = info is None or info.speculates
        self._put("#panel-title", Content(f"Speculation {on}" if speculates else "Speed"))
        rows = rows_of(figures, state)
        if info and not info.speculates:
            rows.append(("", "This server reports no speculation data."))
        self._put("#panel-lead", _lead(gains(figures, state), speculates=speculates and state.speculation))
        self._put("#panel-rows", _table(rows))
        samples = list(figures.samples) if figures else []
        spark = self.query_one("#sparkline", Sparkline)
        if samples[-30:] != spark.data:
            spark.data = samples[-30:] or [0.0]
        spark.set_class(len(samples) < 2, "-empty")
        self._put("#origins", _legend(figures))
        again = figures.ended.read_again if figures and figures.ended else ""
        self._put("#panel-odds", Content(again or odds_shown(figures, info)), wraps=True)
        self._put("#panel-line", one_line(figures, state))

    def _put(self, selector: str, content: Content, *, wraps: bool = False) -> None:
        """Shows a text; lays the screen out anew only if its height may change: that costs all widgets."""
        before = self._shown.get(selector)
        if before is None or str(before) != str(content):
            same = not wraps and before is not None and before.plain.count("\n") == content.plain.count("\n")
            self.query_one(selector, Static).update(content, layout=not same)
            self._shown[selector] = content


def _legend(figures: LiveFigures | None) -> Content:
    """Returns who produced which share of the tokens, the largest first."""
    lines, sources = [], figures.by_source if figures else Counter[str]()
    for name, n in sources.most_common():
        share = f"{NAMES.get(name, name)} {n / sources.total():.0%}"
        lines.append(Content.assemble((" ■ ", f"$origin-{name}"), share))
    return Content("\n").join(lines)


def _lead(found: list[tuple[str, str]], *, speculates: bool) -> Content:
    """Returns the panel's main figure in two lines: the speed-up, as large as a terminal can write it."""
    if not speculates:
        return Content("")
    if not found:
        return Content.styled("speed-up: shown after 50 tokens", "$text 60%")
    (gain, kind), *others = found
    kinds = ", ".join([kind, *(f"{more} {word}" for more, word in others)])
    return Content.assemble((gain, "bold $primary"), (" plain speed", "bold"), (f"\n{kinds}", "$text 60%"))


def _table(rows: list[tuple[str, str]]) -> Content:
    lines = []
    for name, value in rows:
        first, *rest = textwrap.wrap(value, VALUE_WIDTH) or [""]
        lines.append(Content.assemble((name.ljust(NAME_WIDTH), "$text 60%"), first))
        lines += [Content(" " * NAME_WIDTH + line) for line in rest]
    return Content("\n").join(lines)


def one_line(figures: LiveFigures | None, state: PanelState) -> Content:
    """Returns the panel in one line, for narrow terminals."""
    rows = dict(rows_of(figures, state))
    if state.info and state.info.speculates and not state.speculation:
        words = ["speculation off", rows["speed"]]
    else:
        words = [rows["speed"]]
        words += [f"{gain} {kind}" for gain, kind in gains(figures, state)]
        if (accepted := rows.get("accepted", NOTHING)) != NOTHING:
            words.append(accepted.replace(" of guesses", " accepted"))
    if state.used is not None and state.info and state.info.n_ctx:
        share = state.used / state.info.n_ctx
        words.append(f"context {bar(share, LINE_BAR)} {share:.0%}")
    return Content(" " + "  ·  ".join(word for word in words if word != NOTHING))
