"""Heads: small networks that guess from the target's hidden states.

A head takes the place of a draft model's context, and answers in the same way; so loop, drafters, pace,
scheduler and slots know nothing of it. Only the target's context knows that somebody reads its hidden states,
and keeps those of its last tokens (`hidden_rows.py`). What llama.cpp gives differs by graph, and is probed
when a head is loaded: its MTP graphs return hidden rows of all tokens or of those that want logits, and its
EAGLE-3 graph computes logits of all that it reads, whichever were asked for.
"""
