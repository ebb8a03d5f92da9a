"""One request on a loaded pair: the engine with one slot."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from edgespec.core.loop import Scorer
from edgespec.core.pace.costs import Costs
from edgespec.core.request import Request
from edgespec.core.values import Emitted, Failed, ModelName, Round
from edgespec.engine.engine import Engine
from edgespec.engine.loaded_pair import LoadedPair

ID = "alone"


def alone(
    pair: LoadedPair,
    prompt: Sequence[int] | NDArray[np.int32],
    request: Request,
    *,
    cancelled: Callable[[], bool] = lambda: False,
    costs: Costs | None = None,
    scorers: Mapping[ModelName, Scorer] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[Round]:
    """Returns the rounds of a request. Raises what `Engine.submit` does at once, and an EngineError later.

    cancelled: asked before each step; the last round then has the text that was held back. costs, scorers:
    see `Engine`.
    """
    engine = Engine(pair, slots=1, costs=costs, scorers=scorers, clock=clock)
    engine.submit(ID, np.asarray(prompt), request)
    return _rounds(engine, cancelled)


def _rounds(engine: Engine, cancelled: Callable[[], bool]) -> Iterator[Round]:
    while True:
        if cancelled():
            engine.cancel(ID)
        for happened in engine.step():
            if isinstance(happened, Emitted):
                yield happened.round
                if happened.round.finish:
                    return
            elif isinstance(happened, Failed):
                raise happened.error
