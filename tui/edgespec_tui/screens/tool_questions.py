"""What is asked in the middle of an answer: whether a call may be made, and what a server wants to know."""

import asyncio
from collections.abc import Callable, Mapping

from textual.screen import Screen

from edgespec_tui.screens.tools import AskedScreen
from edgespec_tui.tools.loop import Decision, Proposal
from edgespec_tui.tools.question import Asked, Value
from edgespec_tui.widgets.approval_bar import ApprovalBar
from edgespec_tui.widgets.prompt_input import PromptInput


class ToolQuestions:
    """Asks on a screen. since_key: seconds since the last key, which must be more than `quiet_s`."""

    def __init__(
        self, screen: Screen[None], prompt: PromptInput, since_key: Callable[[], float], quiet_s: float
    ) -> None:
        self._screen, self._prompt, self._since_key, self._quiet_s = screen, prompt, since_key, quiet_s

    async def decide(self, proposal: Proposal) -> Decision:
        """Asks whether a call may be made. The keys are for that once nobody types and nothing is written."""
        app, bar = self._screen.app, self._screen.query_one(ApprovalBar)
        if not app.app_focus:
            app.bell()
        try:
            return await bar.ask(proposal, may_take_keys=self._is_quiet)
        finally:
            self._prompt.focus()

    def _is_quiet(self) -> bool:
        return self._since_key() > self._quiet_s and not self._prompt.text

    async def answer(self, asked: Asked) -> Mapping[str, Value] | None:
        """Asks what a server wants to know; None if the user does not say."""
        answered: asyncio.Future[Mapping[str, Value] | None] = asyncio.get_running_loop().create_future()
        form = AskedScreen(asked)

        def take(answers: Mapping[str, Value] | None) -> None:
            if not answered.done():
                answered.set_result(answers)

        await self._screen.app.push_screen(form, take)
        try:
            return await answered
        finally:
            if form.is_current and not answered.done():  # the call was stopped
                form.dismiss(None)
