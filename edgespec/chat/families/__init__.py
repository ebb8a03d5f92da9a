"""How families of models write reasoning and tool calls, read from text as it comes.

Every family has its own format: JSON between tags, tags around each argument, channels. A parser takes
text in pieces and gives deltas: content, reasoning, the beginning of a call, its arguments piece by piece.
The invariant: however the text is cut, the deltas are the same. What may be the first half of a tag is held
back until it is known; nothing that was given is ever taken back.

No file here knows models, tokens or HTTP. A model's family is recognised from its chat template
(`known.py`).
"""
