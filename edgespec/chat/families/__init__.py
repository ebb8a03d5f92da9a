"""How the families of models write thoughts and tool calls, read out of text as it comes.

Every family has a way of its own: JSON between tags, tags around each argument, channels. A parser takes
text in pieces and gives deltas: content, reasoning, the beginning of a call, its arguments piece by piece.
The invariant: however the text is cut, the deltas say the same. What may be the first half of a tag is held
back until it is known; nothing that was given is ever taken back.

No file here knows models, tokens or HTTP. Which family a model is of is read from its chat template
(`known.py`).
"""
