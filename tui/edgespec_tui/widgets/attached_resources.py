"""Resources of servers in a question, named as files are: `@SERVER:NAME`."""

from dataclasses import replace
from functools import partial
from pathlib import Path

from edgespec_tui.endpoint.attached import in_thread
from edgespec_tui.tools.markers import as_data
from edgespec_tui.tools.toolbox import Toolbox
from edgespec_tui.widgets.attached_files import MENTION, fenced, with_files
from edgespec_tui.widgets.question import Insert, QuestionText, count_of


async def with_attachments(question: QuestionText, toolbox: Toolbox) -> tuple[QuestionText, list[str]]:
    """Returns a question with its files and resources, and what to say of them. Raises EdgeSpecError."""
    question, notes = await in_thread(partial(with_files, question))
    servers = {server.name for server in toolbox.servers}
    text, inserts = question.text, [*question.inserts]
    for match in MENTION.finditer(question.text if servers else ""):
        whole = match[1] or match[2]
        server, colon, name = whole.partition(":")
        if colon and server in servers and not any(one.start <= match.start() < one.end for one in inserts):
            content = as_data(await toolbox.resource(server, name))
            start, block = len(text) + 2, fenced(name, Path(name), content)
            text = f"{text}\n\n{block}"
            inserts.append(Insert(start, start + len(block), f"[{whole}: {count_of(content)}]", file=True))
            notes = [sentence for sentence in notes if f" {whole}:" not in sentence]
    return replace(question, text=text, inserts=tuple(inserts)), notes
