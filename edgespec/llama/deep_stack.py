"""Room for llama.cpp's recursive regular expressions: a thread with a deep stack."""

import threading
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

_stack_size = threading.Lock()  # held to change that of later threads


def on_a_deep_stack(work: Callable[[], NDArray[np.int32]], n_bytes: int) -> NDArray[np.int32]:
    """Runs `work` in a thread with room for llama.cpp's recursive regular expressions.

    Some pre-tokenisers recurse once for every character of an unbroken run; 40,000 of them overflow the
    usual 8 MB. If the system refuses so large a stack, the usual one has to do. The size holds for every
    thread that starts then, so it is never made smaller, and by one thread at a time.
    """
    done: list[NDArray[np.int32]] = []
    thread = threading.Thread(target=lambda: done.append(work()))
    with _stack_size:
        before = threading.stack_size()
        try:
            threading.stack_size(max(before, min(1024 * n_bytes + 2**20, 2**30)))
            thread.start()
        except (RuntimeError, ValueError):
            return work()
        finally:
            threading.stack_size(before)
    thread.join()
    return done[0] if done else work()
