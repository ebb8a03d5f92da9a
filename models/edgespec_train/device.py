"""Choose where torch computes: on a GPU if there is one, else on the processor, on the threads that pay."""

import time

import torch

SIDE = 512  # of the matrices that are multiplied to try a number of threads
TRY_S = 0.1
BETTER = 0.8  # of the time of more threads: what fewer must reach


def choose() -> torch.device:
    """Return the device that networks are put on."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def use_threads(most: int) -> None:
    """Have torch use as many threads as pay now: one that shares its core with a program delays all."""
    best, least = most, float("inf")
    for number in sorted({most, most // 2, 1} - {0}, reverse=True) if most > 1 else ():
        torch.set_num_threads(number)
        took = _seconds()
        if took < BETTER * least:
            best, least = number, took
    torch.set_num_threads(best)


def _seconds() -> float:
    """Return seconds of one multiplication, over TRY_S."""
    matrix = torch.ones(SIDE, SIDE)
    matrix @ matrix
    begun, n = time.monotonic(), 0
    while time.monotonic() - begun < TRY_S:
        matrix @ matrix
        n += 1
    return (time.monotonic() - begun) / n
