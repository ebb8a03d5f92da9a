"""One token: guess, judge, emit. No llama.cpp, no HTTP, no files: everything here runs on fakes.

Start here. With `sampling/` these are the 5,000 lines to know; read them in this order:

1. `values.py`    what flows: a `Draft` (a guess), an `Ask` for logits, a `Round` of emitted tokens
2. `loop.py`      the speculative loop, on one screen
3. `drafters/`    ways to guess: protocols in its `__init__`; `free.py` lists those that compete
4. `verify.py`    which guesses stay: the rules that keep the target's distribution, the first in six lines
5. `pace/`        how many guesses pay: costs, odds, the choice
6. `text.py`      ids become text; broken UTF-8 and half a stop string are held back
7. `stats.py`     rounds become figures, with their definitions

Read when needed: `request.py` (what is wanted of one generation), `scores.py` (log probabilities),
`stream.py` (a generation made ready for the engine).

Words, as the field uses them:

target            the model the user chose; p is its distribution
draft             a guess of k tokens; also, for short, the small model or head that makes it; q is its
                  distribution
drafter           anything that makes drafts; a guesser is one that evaluates no model, and makes offers
k                 draft length: how many tokens are guessed ahead in one round
round             one draft and its verification: between 1 and k + 1 tokens
accepted token    a guess that verification keeps
recovered token   drawn from what p has beyond q where a guess is rejected
bonus token       drawn from p when all guesses were accepted
silent guess      one that is not verified: the token that the target emits then shows whether it was right
acceptance rate   accepted / guessed; "by place": for the first guess, the second, ...
prefill, chunk    evaluating the prompt, in chunks of at most one batch
row               the logits after one token; a batch of n tokens costs t(n) and gives up to n rows
confidence        how sure a guesser is of a token, 0 to 1, on a scale of its own
odds              how often guesses of a confidence were accepted, in ten bins
point mass        q of a guess that was not drawn: all its probability on one token
coupled           the mode of a seeded request: draft and target draw with the same noise
settled, tail     tokens that are final; guesses after them, not judged yet
reach             how likely a guess and all before it are to be accepted: their odds, multiplied
gain              expected tokens of a round per time it takes, against plain decoding
slot              one sequence of the KV cache and the tokens it holds
TTFT, TPOT        time to first token; time per output token after it
"""
