"""A file written again after one line was edited: guesses from the earlier text against plain decoding.

    python tests/benchmarks/edited_file.py TARGET.gguf [--lines 200] [--tokens 900]

No small model writes a file of 200 lines twice alike. So the target evaluates as always, at its real cost,
and its logits are replaced by those of the text that it is to write: a module of the standard library, then
the same with a line changed, then that once more. No prompt has the file in it.
"""

import argparse
import cmd
import heapq
import inspect
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec.core.loop import Rows, Want
from edgespec.core.request import Request
from edgespec.core.values import DrafterName, Emitted
from edgespec.engine.engine import Engine
from edgespec.engine.pair import Pair
from edgespec.pairs.settings import PairSettings
from edgespec.sampling.sampler import Sampling

CERTAIN = 40.0  # a logit


class Scripted:
    """The pair's target, whose logits are those of a script."""

    def __init__(self, target: Any) -> None:
        self._target = target
        self.script = np.zeros(0, np.int32)

    def score(self, wants: Sequence[Want]) -> list[Rows]:
        """Evaluates, and returns rows that want the script's next tokens; float32 (rows, n_vocab)."""
        found = []
        for want, rows in zip(wants, self._target.score(wants), strict=True):
            end, n = want.tokens.size + len(want.tail) + 1, rows.shape[0]
            coming = self.script[end - n : end]
            wanted = np.zeros(rows.shape, np.float32)
            wanted[np.arange(coming.size), coming] = CERTAIN
            found.append(wanted)
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)


def written(
    engine: Engine,
    target: Scripted,
    prompt: NDArray[np.int32],
    text: NDArray[np.int32],
    drafter: DrafterName,
    never: dict[int, float],
) -> float:
    """Returns the tokens a second of writing a text, from its first token on."""
    target.script, at, n = np.concatenate([prompt, text]), list[float](), 0
    request = Request(Sampling(temperature=0, logit_bias=never), text.size, drafter=drafter)
    engine.submit("text", prompt, request)
    while not engine.idle:
        for one in engine.step():
            if isinstance(one, Emitted):
                at.append(time.perf_counter())
                n += len(one.round.tokens)
    assert n == text.size
    return (n - 1) / (at[-1] - at[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("--lines", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=900)
    chosen = parser.parse_args()
    settings = PairSettings(n_ctx=chosen.tokens + 256, remember=False)
    with Pair(chosen.target, None, settings) as pair:
        target = Scripted(pair.target_context)
        engine = Engine(pair, slots=1, costs=pair.costs(), scorers={"target": target})
        never = {token: -float("inf") for token in pair.target.end_tokens}

        def tokens(text: str) -> NDArray[np.int32]:
            return np.array(pair.target.tokenize(text.encode(), special=False, add_bos=False), np.int32)

        for module in (textwrap, heapq, cmd):
            name = module.__name__
            lines = inspect.getsource(module).splitlines()[: chosen.lines]
            at = len(lines) // 4
            edited = [*lines[:at], "    changed = here(17)", *lines[at + 1 :]]
            old, new = (tokens("\n".join(text))[: chosen.tokens] for text in (lines, edited))
            first, again = tokens(f"# {name}.py\n"), tokens(f"# {name}.py, line {at} changed\n")
            plain = written(engine, target, again, new, "none", never)
            speeds = [
                written(engine, target, prompt, text, "auto", never)
                for prompt, text in ((first, old), (again, new), (again, new))
            ]
            ratios = "; ".join(
                f"{what} {speed:.1f} ({speed / plain:.2f})"
                for what, speed in zip(("first", "edited", "again"), speeds, strict=True)
            )
            print(f"{name}, {new.size} tokens: plain {plain:.1f} tok/s; {ratios}", flush=True)


if __name__ == "__main__":
    main()
