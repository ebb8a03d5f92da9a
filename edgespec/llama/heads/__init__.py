"""Heads: small networks that guess from what the target made of its tokens.

A head stands where the context of a draft model stands, and answers as one does; so loop, drafters, pace,
scheduler and slots know nothing of it. Only the target's context knows that somebody reads its hidden states,
and keeps those of its last tokens (`hidden_rows.py`). What llama.cpp gives differs by graph, and is probed
when a head is loaded: its MTP graphs hand out hidden rows of all tokens or of those that want logits, and its
EAGLE-3 graph makes logits of all that it reads, whichever were asked for.
"""
