"""The race of a chat's question, plain against speculative: of a new one with its files, or of the last."""

import random

from edgespec.client.answer import AnswerOptions
from edgespec.errors import SettingError
from edgespec_tui.endpoint.endpoint import Message
from edgespec_tui.screens.chat_context import ChatContext
from edgespec_tui.screens.race import drawn
from edgespec_tui.screens.race_screen import RaceScreen
from edgespec_tui.sessions.conversation import Conversation
from edgespec_tui.widgets.attached_resources import with_attachments
from edgespec_tui.widgets.panel import odds_against
from edgespec_tui.widgets.question import QuestionText


async def race_of(
    context: ChatContext, talk: Conversation, question: QuestionText, options: AnswerOptions, *, tinted: bool
) -> tuple[RaceScreen, list[str]]:
    """Returns the screen of a race, and notes on the question's files. Raises EdgeSpecError."""
    engine = context.engine
    if engine.info is None or engine.state != "ready":
        raise SettingError("there is no engine to race yet: wait until the model is loaded")
    if engine.is_foreign:
        raise SettingError(f"{engine.info.where} reports no speculation data: there is nothing to race")
    questions = [turn for turn in talk.path() if turn.role == "user"]
    notes: list[str] = []
    if question.text.strip():
        whole, notes = await with_attachments(question, context.toolbox)
        text = whole.folded()
        messages = [*talk.messages(), Message("user", whole.text, whole.media, whole.digests)]
    elif questions:
        text, messages = questions[-1].text, talk.messages(upto=questions[-1].id)
    else:
        raise SettingError("there is no question to race: write one, then press F5")
    race = drawn(engine.endpoint, messages, options, rng=random.Random())
    earlier = [turn.text for turn in talk.turns.values() if turn.role == "assistant"]
    why = odds_against(engine.info.break_even)
    return RaceScreen(race, text, earlier=earlier, tinted=tinted, why=why), notes
