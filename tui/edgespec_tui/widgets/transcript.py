"""The turns on the screen. Only the newest are widgets; earlier ones come as they are scrolled to.

Every widget costs time whenever anything is laid out, so that 200 turns would make typing slow while an
answer streams. What is not shown is still in the conversation.
"""

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.widgets import Button, Static

from edgespec_tui.sessions.conversation import Conversation, Turn
from edgespec_tui.widgets.growing import Bare
from edgespec_tui.widgets.turn_view import AnswerView, QuestionView, TurnView

SHOWN = 4  # turns that are widgets
MORE = 6  # that come when the top is reached


class Transcript(VerticalScroll, Bare, can_focus=False):
    """Shows the path of a conversation."""

    def __init__(self) -> None:
        super().__init__(id="transcript")
        self.tinted = False
        self._path: list[Turn] = []
        self._conversation = Conversation()
        self._first = 0  # of the path, the first that is a widget
        self._left_out: frozenset[int] = frozenset()

    def compose(self) -> ComposeResult:
        above = Button("", id="earlier", compact=True)
        above.can_focus = False  # what is typed next is for the input
        yield above

    def on_mount(self) -> None:
        self.anchor()

    async def show(self, conversation: Conversation) -> None:
        """Shows a conversation from its end, in place of the previous one."""
        self._conversation, self._path = conversation, conversation.path()
        self._first = max(0, len(self._path) - SHOWN)
        with self.app.batch_update():
            await self.query(TurnView).remove()
            await self.query(".notice").remove()
            await self.mount_all([self._view(turn) for turn in self._path[self._first :]])
        self._show_earlier()
        self.anchor()

    def _view(self, turn: Turn) -> TurnView:
        siblings = self._conversation.siblings(turn.id)
        versions = (siblings.index(turn.id) + 1, len(siblings))
        is_question = turn.role == "user"
        view = QuestionView(turn, versions) if is_question else AnswerView(turn, versions, tinted=self.tinted)
        return view.set_class(turn.id in self._left_out, "left-out")

    async def add(self, turn: Turn) -> None:
        """Shows one more turn, at the end; those far above go."""
        self._path = self._conversation.path()
        await self.mount(self._view(turn))
        surplus = list(self.query(TurnView))[:-SHOWN]
        self._first += len(surplus)
        if surplus:
            await self.remove_children(surplus)
        self._show_earlier()
        self.anchor()

    def _show_earlier(self) -> None:
        button = self.query_one("#earlier", Button)
        button.display = self._first > 0
        button.label = f"{self._first} earlier turns: scroll up or click here"

    async def on_button_pressed(self, event: Button.Pressed) -> None:
        if event.button.id == "earlier":
            event.stop()
            await self.show_earlier()

    async def show_earlier(self) -> None:
        """Shows some earlier turns, and keeps the place that is being read."""
        top = next(iter(self.query(TurnView)), None)
        if isinstance(top, AnswerView) and (more := [body for body in top.bodies if body.has_more]):
            await more[-1].show_more()
            return
        low = max(0, self._first - MORE)
        if low == self._first:
            return
        fresh = [self._view(turn) for turn in self._path[low : self._first]]
        self._first = low
        await self.mount_all(fresh, after=self.query_one("#earlier"))
        self._show_earlier()
        if top is not None:
            self.call_after_refresh(self.scroll_to_widget, top, animate=False, top=True)

    def on_mouse_scroll_up(self) -> None:
        self.reach_up()

    def reach_up(self) -> None:
        """Shows some earlier turns, if the top has been reached already."""
        if self.scroll_y <= 0 and not any(one.group == "earlier" for one in self.workers):
            self.run_worker(self.show_earlier(), group="earlier")

    async def reveal(self, id: int, words: str, number: int, share: float) -> None:
        """Scrolls to a place in a turn, and marks words there and in all that is shown.

        number: how many places of the turn come before it. share: of its text before it, for what is not
        shown as it was written.
        """
        if id not in {turn.id for turn in self._path}:
            return
        while (view := self.view_of(id)) is None:
            await self.show_earlier()
        await view.show_all()
        self.call_after_refresh(self._scroll_within, view, words, number, share)

    def _scroll_within(self, view: TurnView, words: str, number: int, share: float) -> None:
        self.mark(words)
        row, left = view.virtual_region.y + round(share * view.size.height), number
        for rows in view.written():
            places = rows.mark(words, left)
            if left < len(places):
                row = rows.region.y - view.region.y + view.virtual_region.y + places[left]
                break
            left -= len(places)
        self.scroll_to(y=max(0, row - self.size.height // 2), animate=False)

    def mark(self, words: str) -> None:
        """Marks words wherever they are shown; an empty text removes the marks."""
        for view in self.query(TurnView):
            for rows in view.written():
                rows.mark(words)

    def view_of(self, id: int) -> TurnView | None:
        """Returns the widget of a turn; None if it has none."""
        return next((view for view in self.query(TurnView) if view.turn.id == id), None)

    async def set_tinted(self, tinted: bool) -> None:
        """Colours tokens by who produced them, or not."""
        self.tinted = tinted
        for view in self.query(AnswerView):
            await view.set_tinted(tinted)

    async def mark_left_out(self, ids: Sequence[int], *, notify: bool) -> None:
        """Marks the turns that the model no longer gets. notify: also say so before the last turn."""
        self._left_out = frozenset(ids)
        views = list(self.query(TurnView))
        for view in views:
            view.set_class(view.turn.id in self._left_out, "left-out")
        if notify and views:
            sentence = f"The context is full: the model no longer sees the oldest {len(ids)} turns."
            await self.mount(Static(sentence, classes="notice", markup=False), before=views[-1])
            self.anchor()
