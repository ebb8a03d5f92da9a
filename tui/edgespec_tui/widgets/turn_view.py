"""A turn on the screen: who speaks, the text, and what can be done with it."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.message import Message
from textual.widgets import Collapsible, Static

from edgespec_tui.sessions.conversation import Turn
from edgespec_tui.terminal.shown_text import Content
from edgespec_tui.tools.values import Call, calls_of
from edgespec_tui.widgets.answer_body import AnswerBody
from edgespec_tui.widgets.block_rows import BlockRows
from edgespec_tui.widgets.call_view import CallView
from edgespec_tui.widgets.growing import Growing
from edgespec_tui.widgets.markdown_blocks import lines_of
from edgespec_tui.widgets.origins import part
from edgespec_tui.widgets.question import QuestionText, question_of
from edgespec_tui.widgets.thumbnail import Thumbnail

TurnAction = Literal["copy", "edit", "again", "go_on", "branch", "older", "newer"]
NO_ANSWER = "the model ended without an answer: Ctrl+R asks again"
LINES = 24  # of a question, with marks in it; later ones are shown when it is opened


class TurnView(Vertical, Growing, can_focus=True):
    """One turn. Reached with Tab or a click, on a word of its lines too; then a letter does what they say."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("c,y", "do('copy')", "Copy", id="turn.copy"),
        Binding("e", "do('edit')", "Edit", id="turn.edit"),
        Binding("r", "do('again')", "Again", id="turn.again"),
        Binding("g", "do('go_on')", "Continue", id="turn.go_on"),
        Binding("b", "do('branch')", "Branch", id="turn.branch"),
        Binding("left_square_bracket", "do('older')", "Version before", id="turn.older", show=False),
        Binding("right_square_bracket", "do('newer')", "Version after", id="turn.newer", show=False),
        Binding("space,o", "reasoning", "Open or close", id="turn.reasoning", show=False),
        Binding("up,k", "app.focus_previous", "Turn above", id="turn.above", show=False),
        Binding("down,j", "app.focus_next", "Turn below", id="turn.below", show=False),
    ]

    @dataclass
    class Wanted(Message):
        """Something should be done with a turn."""

        action: TurnAction
        turn: int

    def __init__(self, turn: Turn, versions: tuple[int, int]) -> None:
        """versions: which of how many this is, from 1."""
        super().__init__(id=f"turn-{turn.id}", classes=turn.role)
        self.turn, self._versions = turn, versions

    async def show_all(self) -> None:
        """Shows what is folded or left out of its text."""

    def written(self) -> Sequence[BlockRows]:
        """Returns the widgets that show its text, from the top."""
        return ()

    def action_do(self, action: TurnAction) -> None:
        """Asks for something to be done with this turn."""
        self.post_message(self.Wanted(action, self.turn.id))

    def action_reasoning(self) -> None:
        """Opens or closes the reasoning."""
        for fold in self.query(Collapsible):
            fold.collapsed = not fold.collapsed

    def _head(self, who: str) -> Content:
        number, count = self._versions
        older = f"[@click=focused.do('older')] < [/]{number} of {count}[@click=focused.do('newer')] > [/]"
        return Content.from_markup("[b]$who[/b]" + (f"  {older}" if count > 1 else ""), who=who)

    def _top(self, who: Static, *actions: TurnAction) -> Horizontal:
        """Returns the row above a turn: who speaks, and what can be done."""
        words = (f"[@click=focused.do('{action}')]{' '.join(SHOWN_KEYS[action])}[/]" for action in actions)
        can_do = Static(Content.from_markup("  ".join(words)), classes="actions")
        return Horizontal(who, can_do, classes="top")


SHOWN_KEYS = {  # what can be done with a turn: its key, its word
    one.id.partition(".")[2]: (one.key.partition(",")[0], one.description.lower())
    for one in TurnView.BINDINGS
    if isinstance(one, Binding) and one.id and one.show
}


class QuestionView(TurnView):
    """A question. What was pasted, and what is very long, is folded until it is opened."""

    def __init__(self, turn: Turn, versions: tuple[int, int]) -> None:
        super().__init__(turn, versions)
        question = question_of(turn.text, turn.settings)
        lines = question.folded().split("\n")
        self._rest = max(0, len(lines) - LINES)
        self._short = "\n".join(lines[:LINES])
        self._folded = bool(question.inserts) or self._rest > 0
        self._shown_text = BlockRows(lines_of(self._short))
        self._more = Static("", classes="more")
        self._pictures = pictures_of(question)

    def compose(self) -> ComposeResult:
        yield self._top(Static(self._head("You"), classes="who"), "copy", "edit", "branch")
        yield self._shown_text.set_class(True, "question-text")
        if self._pictures:
            yield Horizontal(*self._pictures, classes="pictures")
        yield self._more
        self._more.display = self._folded
        self._show_more()

    async def show_all(self) -> None:
        if self._folded and self._more.display:
            self.action_reasoning()

    def written(self) -> Sequence[BlockRows]:
        return (self._shown_text,)

    async def show_pictures(self, turn: Turn) -> None:
        """Shows the small copies of its pictures, which were made since."""
        self.turn = turn
        if self.is_attached:
            row = self.query_one(".pictures", Horizontal)
            await row.remove_children()
            await row.mount_all(pictures_of(question_of(turn.text, turn.settings)))

    def action_reasoning(self) -> None:
        """Opens what is folded, or closes it."""
        if self._more.display:
            self._folded = not self._folded
            self._shown_text.show(lines_of(self._short if self._folded else self.turn.text))
            self._show_more()

    def _show_more(self) -> None:
        rest = f"{self._rest:,} more lines: " if self._folded and self._rest else ""
        does = "show all of it" if self._folded else "fold it again"
        fold = Content.from_markup("$rest[@click=focused.reasoning]o $does[/]", rest=rest, does=does)
        self._more.update(fold)


def pictures_of(question: QuestionText) -> list[Thumbnail]:
    """Returns the small copies of a question's pictures; older chats lack some, and digests."""
    n = len(question.media)
    kept, digests = ((*all, *[""] * n)[:n] for all in (question.thumbnails, question.digests))
    return [Thumbnail(*of) for of in zip(kept, question.media, digests, strict=True)]


class AnswerView(TurnView):
    """An answer, while it streams and afterwards."""

    def __init__(self, turn: Turn, versions: tuple[int, int], *, tinted: bool) -> None:
        super().__init__(turn, versions)
        self._tinted = tinted
        self._parts = [*_parts(turn, tinted)]
        self._thoughts = BlockRows(lines_of(turn.reasoning))
        self._fold: Collapsible | None = self._new_fold("Reasoning") if turn.reasoning else None
        self._who = Static(self._head(turn.model or "Answer"), classes="who")
        self._note = Static("", classes="note")
        self._waiting = ""
        self._thinking_since: float | None = None
        self._thought: list[str] = [turn.reasoning] if turn.reasoning else []

    def compose(self) -> ComposeResult:
        yield self._top(self._who, "copy", "edit", "again", "go_on", "branch")
        if self._fold:
            yield self._fold
        yield from self._parts
        yield self._note

    async def on_mount(self) -> None:
        if self.turn.finish:
            await self.end(self.turn)

    @property
    def bodies(self) -> list[AnswerBody]:
        """The texts of the answer: one, or one for each message between which it called tools."""
        return [part for part in self._parts if isinstance(part, AnswerBody)]

    async def show_all(self) -> None:
        for body in self.bodies:
            while body.has_more:
                await body.show_more()

    def written(self) -> Sequence[BlockRows]:
        return [rows for body in self.bodies for rows in body.query(BlockRows)]

    async def set_tinted(self, tinted: bool) -> None:
        """Colours the text by who produced it, or not."""
        self._tinted = tinted
        for body in self.bodies:
            await body.set_tinted(tinted)

    async def feed(self, text: str, reasoning: str, runs: list[tuple[str, int]]) -> None:
        """Adds text; runs: of `text`. Does nothing if it is no longer shown."""
        if not self.is_attached:
            return
        if text or reasoning:
            self.show_waiting("")
        if reasoning:
            await self._think(reasoning)
        if text:
            if self._fold and self._fold.title.startswith("Thinking"):
                self._fold.title = self._fold.title.replace("Thinking", "Thought")
            last = self._parts[-1]
            if not isinstance(last, AnswerBody):
                last = AnswerBody("", (), tinted=self._tinted).add_class("after-call")
                await self._add_part(last)
            await last.feed(text, runs)

    async def show_call(self, call: Call) -> None:
        """Shows a call, or what has become of it."""
        if not self.is_attached:
            return
        self.show_waiting("" if call.outcome == "asked" else "reading the result")
        for shown in self._parts:
            if isinstance(shown, CallView) and (shown.call.id, shown.call.round) == (call.id, call.round):
                shown.show(call)
                return
        await self._add_part(CallView(call))

    async def _add_part(self, part: AnswerBody | CallView) -> None:
        self._parts.append(part)
        await self.mount(part, before=self._note)

    def _new_fold(self, title: str) -> Collapsible:
        return Collapsible(self._thoughts, title=title, classes="reasoning")

    async def _think(self, reasoning: str) -> None:
        now = time.monotonic()
        self._thinking_since = self._thinking_since or now
        if self._fold is None:
            self._fold = self._new_fold("Thinking")
            await self.mount(self._fold, before=self._parts[0])
        self._thought.append(reasoning)
        self._fold.title = f"Thinking, {now - self._thinking_since:.0f} s"
        self._thoughts.show(lines_of("".join(self._thought)))

    async def end(self, turn: Turn) -> None:
        """Shows how the answer ended, and its figures."""
        self.turn = turn
        if self.is_attached:
            self._note.update(Content(" · ".join(ending(turn))))

    def name_model(self, model: str) -> None:
        """Shows who answers."""
        self._who.update(self._head(model))

    def show_waiting(self, sentence: str) -> None:
        """Shows what the answer waits for; an empty sentence clears that."""
        self._waiting = sentence
        self._show_note(sentence)

    def show_silence(self, seconds: float) -> None:
        """Shows for how long nothing has come, with what the answer waits for."""
        note = f"nothing from the engine for {seconds:.0f} s: Esc stops the answer"
        self._show_note(" · ".join(filter(None, (self._waiting, note))))

    def _show_note(self, sentence: str) -> None:
        if sentence != str(self._note.content):
            self._note.update(Content(sentence))


def _parts(turn: Turn, tinted: bool) -> Iterator[AnswerBody | CallView]:
    """Yields the texts of an answer and its calls, in the order in which they were made."""
    begin, calls = 0, calls_of(turn.settings)
    if turn.finish:  # a crash may have come between a call and its result
        calls = tuple(replace(one, outcome="stopped") if one.outcome == "asked" else one for one in calls)
    for round_ in sorted({call.round for call in calls}):
        these = [call for call in calls if call.round == round_]
        end = min(max(begin, these[0].at), len(turn.text))
        if end > begin or not begin:
            yield AnswerBody(turn.text[begin:end], tuple(part(turn.runs, begin, end)), tinted=tinted)
        yield from map(CallView, these)
        begin = end
    if begin < len(turn.text) or not calls:
        end = len(turn.text)
        body = AnswerBody(turn.text[begin:], tuple(part(turn.runs, begin, end)), tinted=tinted)
        yield body.set_class(bool(calls), "after-call")


def ending(turn: Turn) -> list[str]:
    """Returns the line below an answer that has ended."""
    parts = []
    if turn.finish == "cancelled":
        parts.append(str(turn.figures.get("reason") or "interrupted"))
    if turn.finish == "length":
        parts.append("stopped at the length limit: g continues")
    if turn.finish == "stop" and not turn.text.strip():
        parts.append(str(turn.figures.get("reason") or NO_ANSWER))
    return [*parts, *turn.figure_words()]
