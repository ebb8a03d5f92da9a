"""What is offered next to the pair that answers: the catalogue's best, and a model of another program."""

import asyncio

from edgespec.memory.recommended import Recommended
from edgespec.pairs.found import Found
from edgespec_tui.endpoint.attached import LOOK_AGAIN_S, in_thread
from edgespec_tui.screens.chat import ChatScreen
from edgespec_tui.screens.model_shelf import Shelf, offered
from edgespec_tui.widgets.welcome import Welcome

LOOK_AFTER_S = 1.0  # an engine is ready, and nobody has been kept waiting


class Offers:
    """best: of the catalogue, for this machine. found: of another program, here."""

    def __init__(self, shelf: Shelf, chat: ChatScreen, *, after_s: float = LOOK_AFTER_S) -> None:
        """after_s: how long an engine is ready before it looks."""
        self._shelf, self._chat, self._after_s = shelf, chat, after_s
        self.best: Recommended | None = None
        self.found: Found | None = None
        self._looked = False

    async def look(self) -> None:
        """Looks for both, once in a run and when it keeps nobody waiting, and shows what there is."""
        if self._looked:
            return
        self._looked, chat = True, self._chat
        while not chat.is_whole:
            await asyncio.sleep(LOOK_AGAIN_S)
        await asyncio.sleep(self._after_s)
        self.best = await in_thread(self._shelf.recommended)
        if self.best is not None and chat.is_whole:
            chat.query_one(Welcome).recommend(self.best.sentence)
        self.found = await in_thread(self._shelf.look)
        if self.found is not None and chat.is_whole:
            pair = offered(self.found)
            chat.query_one(Welcome).offer(pair)
            if chat.conversation.turns:  # the welcome has given place to the first question
                chat.tell(f"Already here: {pair}. Alt+U continues with it.", "warning")
