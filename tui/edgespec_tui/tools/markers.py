"""Text of a server as data: nothing in it that a terminal obeys, or that ends a turn and begins another.

A prompt is one text in which a template's markers stand as they are spelt (llama-server reads it so, too). A
result that spells them would be read as the user's word.
"""

import re

from edgespec.system.odd_text import as_text
from edgespec_tui.terminal.typed_bytes import without_controls

APART = "\u200b"  # takes no room on the screen
WORDS = "start_of_turn|end_of_turn|/?s|bos|eos|pad|unk|/?think|/?tool_calls?|/?tool_response|/?tool_outputs?"
MARKERS = re.compile(
    rf"<(?=[|｜]|<?/?SYS>|(?:{WORDS})>)"  # of most templates, of Llama 2, of Gemma and others
    rf"|[|｜](?=>)|\[(?=/?[A-Z][A-Z_]{{2,30}}\])"  # of Mistral
)


def as_data(text: str) -> str:
    """Returns a text without control characters, whose markers are apart: they are read, and mean nothing."""
    return MARKERS.sub(lambda found: found[0] + APART, without_controls(as_text(text)))
