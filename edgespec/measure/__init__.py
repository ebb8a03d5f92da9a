"""What `bench`, `doctor`, `verify` and `distill` share: prompts, samples of a pair, figures, the machine.

Values and arithmetic (`lines`, `figures`) know nothing of models; `in_turn` runs, `takers` take samples.
Invariant: every ratio is of two measurements on the same prompt and seed, taken one after the other in random
order.
"""
