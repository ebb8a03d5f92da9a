"""`/compact`: the oldest turns become a summary of the model's own, and the whole chat stays as it is."""

from dataclasses import replace

from edgespec.client.answer import AnswerOptions, Ended, StreamedRound
from edgespec.errors import EdgeSpecError, SettingError
from edgespec_tui.endpoint.endpoint import Endpoint, Message
from edgespec_tui.sessions.context_fit import fit
from edgespec_tui.sessions.conversation import Conversation

KEPT = 4  # turns at the end that stay as they are: two questions and their answers
LONGEST = 600  # tokens of a summary
ASKED = (
    "Summarise our conversation so far for yourself, so that you can continue it without the text: what I "
    "want, what was decided and found, names, numbers, file names and code that still matter, and what is "
    "open. Write plain sentences, at most 300 words, and nothing else."
)
BEGINS = "What was said before, in short:\n"


async def compacted(
    endpoint: Endpoint, talk: Conversation, options: AnswerOptions, n_ctx: int | None
) -> Conversation:
    """Returns a new chat that continues from a summary. Raises SettingError, and what the endpoint raises."""
    path = talk.path()
    first = len(path) - KEPT
    while first > 0 and path[first].role != "user":
        first -= 1
    if first < 2:
        raise SettingError("there is nothing to summarise yet: /compact keeps the last two questions")
    older = talk.branch(path[first - 1].id)
    question = older.add("user", ASKED, parent=older.head)
    fitting = await fit(endpoint, older, question.id, n_ctx=n_ctx)
    wanted = replace(options, max_tokens=LONGEST, seed=talk.seed, sampling=dict(talk.sampling))
    summary = (await _answer(endpoint, fitting.messages, wanted)).strip()
    if not summary:
        raise EdgeSpecError("the model wrote no summary: the chat stays as it is")
    own = talk.system.partition(BEGINS)[0].rstrip()  # of an earlier summary, the new one has what matters
    system = "\n\n".join(filter(None, [own, BEGINS + summary]))
    new = replace(talk.branch(path[-1].id), system=system, turns={})
    for turn in path[first:]:
        settings = {name: value for name, value in turn.settings.items() if name != "left_out"}
        parent = None if turn is path[first] else turn.parent
        new.turns[turn.id] = replace(turn, parent=parent, settings=settings)
    return new


async def _answer(endpoint: Endpoint, messages: list[Message], options: AnswerOptions) -> str:
    text = ""
    async for part in endpoint.answer(messages, options):
        if isinstance(part, StreamedRound):
            text += part.round.text
        elif isinstance(part, Ended):
            break
    return text
