"""`edgespec bench`: what speculation is worth on this machine, measured in turn with plain decoding.

Values and arithmetic (`lines`, `figures`) know nothing of models; `measure` runs, and `report` shows.
Invariant: every ratio is of two measurements on the same prompt and seed, taken one after the other in random
order.
"""
