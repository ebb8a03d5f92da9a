"""One token: guess, judge, emit. No llama.cpp, no HTTP, no files: everything here runs on fakes.

Start here. With `sampling/` these are the 3,500 lines to know; read them in this order:

1. `values.py`    what flows: a `Guess`, an `Ask` for logits, a `Round` of emitted tokens
2. `loop.py`      the speculative loop, on one screen
3. `drafters/`    ways to guess: a draft model, the text itself, what the target thought before
4. `verify.py`    which guesses stay: the rules that keep the target's distribution, in six lines each
5. `pace/`        how many guesses pay: costs, odds, the choice
6. `text.py`      ids become text; broken UTF-8 and half a stop string are held back
7. `stats.py`     rounds become figures, with their definitions

Words, as the field uses them:

target            the model the user chose; p is its distribution
draft             what guesses: a small model, a head, or the text itself; q is its distribution
k                 draft length: how many tokens are guessed ahead in one round
round             one draft and its verification: between 1 and k + 1 tokens
accepted token    a guess that verification keeps
recovered token   drawn from what p has beyond q where a guess is rejected
bonus token       drawn from p when all guesses were accepted
acceptance rate   accepted / guessed; "by place": for the first guess, the second, ...
prefill, chunk    evaluating the prompt, in chunks of at most one batch
row               the logits behind one token; a batch of n tokens costs t(n) and gives up to n rows
reach             how likely a guess is to be arrived at: the odds of all before it, multiplied
gain              expected tokens of a round per time it takes, against plain decoding
slot              one sequence of the KV cache and the tokens it holds
TTFT, TPOT        time to first token; time per output token after it
"""
