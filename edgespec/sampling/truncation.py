"""The candidates: the tokens of a row of 150,000 logits that are worth a look, found in few passes over it.

Top-k, top-p and min-p each keep a head of the descending order. A row is read once, for the maxima
of its blocks, and only blocks that can reach the head are searched: the result is exact, and
most of a row is never read twice. Among equal logits the lower id comes first.
"""

import math
from bisect import bisect_left
from collections.abc import Callable
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from edgespec.sampling.distribution import FEW, WIDE, Ids

Row = NDArray[np.float32]

NEAR = 9.0  # logits this far below the largest have 1e-4 of its probability: blocks beyond are not opened
MOST_BLOCKS = 200  # if more blocks reach near the top, the whole row costs no more
BLOCK = 64  # logits in a block, the unit that is opened or skipped by its maximum
DEEPEST, BINS = 32, 64  # bins in one unit of logits, down to where e^-32 is left
OUTSIDE = DEEPEST * BINS + 1  # the bin of what takes no part
HUGE = 1e30  # differences from larger logits than this may overflow


def _block_maxima(row: Row) -> Row:
    """Returns the maximum of each block of BLOCK logits; block j holds ids j, j + n, j + 2n, ... (n blocks).

    Interleaved, because a maximum down the columns of a matrix is several times cheaper than along rows.
    The last row.size % BLOCK logits are in no block.
    """
    n = row.size // BLOCK
    maxima: Row = np.maximum.reduce(row[: n * BLOCK].reshape(BLOCK, n), axis=0)
    return maxima


def _ids_in_blocks(row: Row, blocks: Ids) -> Ids:
    """Returns the ids in the given blocks and in none, ascending."""
    n = row.size // BLOCK
    ids = (np.arange(BLOCK)[:, None] * n + blocks).ravel()
    return np.concatenate([ids, np.arange(n * BLOCK, row.size)])


def largest(row: Row, k: int) -> Ids:
    """Returns the ids of the k largest logits in descending order, the lower id first among equals.

    Exact: the k-th largest block maximum bounds the k-th largest logit from below, so only blocks that
    reach it are searched.
    """
    blocks = row.size // BLOCK
    if k >= blocks:
        ids: Ids = np.arange(row.size)
    else:
        maxima = _block_maxima(row)
        bound = np.partition(maxima, blocks - k)[blocks - k]
        ids = _ids_in_blocks(row, np.flatnonzero(maxima >= bound))
        ids = ids[row[ids] >= bound]
    if 4 * k < ids.size:  # cut the pool before sorting; equals of the last one stay in
        bound = np.partition(row[ids], ids.size - k)[ids.size - k]
        ids = ids[row[ids] >= bound]
    return ids[np.argsort(-row[ids], kind="stable")][:k]


def below(row: Row, top: float) -> Row:
    """Returns row - top, if no logit is larger than `top`; far-off ones may become -inf."""
    if top < HUGE:
        return row - np.float32(top)
    with np.errstate(over="ignore"):
        return row - np.float32(top)


def few(
    row: Row, top_k: int, top_p: float, min_p: float, mass_of: Callable[[Row, float], float]
) -> tuple[list[int], list[float]] | None:
    """Returns what top-k (if not 0), top-p and min-p leave, if min-p or top-k leaves FEW at most.

    The ids, ascending, and how far below the largest their logits are. None if more are left, or if the
    row has no usable number. `mass_of`: as in `head`.
    """
    top = row.item(row.argmax())  # first, because it is the fastest way to bring a row into the cache
    if not math.isfinite(top):
        return None
    ids = (row >= top + math.log(min_p)).nonzero()[0] if min_p > 0 else None
    if (ids is None or ids.size > FEW) and 0 < top_k <= FEW:
        ids = largest(row, top_k)
    if ids is None or ids.size > FEW:
        return None
    tokens, depths = ids.tolist(), [logit - top for logit in row.take(ids).tolist()]
    order = sorted(range(len(tokens)), key=lambda i: (-depths[i], tokens[i]))
    if top_k:
        order = order[:top_k]
    if top_p < 1 and len(order) > 1:
        sums = list(accumulate([math.exp(depths[i]) for i in order]))
        least = most = sums[-1]  # of all that top-p is a share of
        # all are needed, however much the rest has, or there is no rest
        known = sums[-2] < top_p * least or len(order) == top_k
        if not known and top_k:
            least = most = float(np.exp(row.take(largest(row, top_k)) - top).sum(dtype=np.float64))
        elif not known:
            least, most = _mass_between(row, top, mass_of)
        end = bisect_left(sums, top_p * least)
        if end < bisect_left(sums, top_p * most):
            end = bisect_left(sums, top_p * mass_of(row, top))
        order = order[: end + 1]
    kept = sorted([(tokens[i], depths[i]) for i in order if depths[i] > -math.inf])
    return [token for token, _ in kept], [depth for _, depth in kept]


def _mass_between(row: Row, top: float, mass_of: Callable[[Row, float], float]) -> tuple[float, float]:
    """Returns bounds of the sum of exp(logit - top) over a row; the same one twice if it was summed."""
    if row.size >= WIDE:
        maxima, opened, logits = _near(row, top, -NEAR)
        if opened.size <= MOST_BLOCKS:
            return _bounds(maxima, opened, logits)
    mass = mass_of(row, top)
    return mass, mass


def _near(row: Row, top: float, cut: float) -> tuple[Row, Ids, Row]:
    """Returns the blocks' maxima, which of them reach `cut`, and the logits of these and of none.

    Maxima and logits are given as distances below `top`; no logits if too many blocks reach it.
    """
    n = row.size // BLOCK
    maxima, rest = below(_block_maxima(row), top), row[n * BLOCK :]
    opened = (maxima >= cut).nonzero()[0]
    if opened.size > MOST_BLOCKS:
        return maxima, opened, rest[:0]
    logits = below(row[: n * BLOCK].reshape(BLOCK, n).take(opened, axis=1).ravel(), top)
    if rest.size:
        logits = np.concatenate([logits, below(rest, top)])
    return maxima, opened, logits


def _bounds(maxima: Row, opened: Ids, logits: Row) -> tuple[float, float]:
    """Returns the mass that was seen, and the most there can be: no logit is above its block's maximum."""
    least = float(np.add.reduce(np.exp(logits), dtype=np.float64))
    maxima[opened] = -np.inf
    return least, least + BLOCK * float(np.add.reduce(np.exp(maxima), dtype=np.float64))


def head(
    row: Row, top_p: float, min_p: float, mass_of: Callable[[Row, float], float]
) -> tuple[Ids, Row] | None:
    """Returns what top-p and min-p leave: ids, ascending, and how far below the largest their logits are.

    None if that reaches too far down to be found this way, or if the row has no usable number.
    Only blocks near the largest logit are opened. If the bounds of the whole row's mass cut at the same
    place, so does the true mass; else `mass_of` the row is asked for.
    """
    lowest = math.log(min_p) if min_p > 0 else -math.inf
    top = row.item(row.argmax())
    if not math.isfinite(top) or (top_p >= 1 and lowest < -NEAR):
        return None
    cut = max(lowest, -NEAR)  # all logits from here up are in the blocks that are opened
    maxima, opened, logits = _near(row, top, cut if top_p >= 1 else -NEAR)
    if opened.size > MOST_BLOCKS:
        return None
    at = (logits >= cut).nonzero()[0]
    if top_p < 1 and not (at.size == 1 and cut == lowest):  # one token is in any head
        least, most = _bounds(maxima, opened, logits)
        kept = _nucleus(logits.take(at), top_p, least, most, lambda: mass_of(row, top))
        if kept is None and cut > lowest:
            return None
        at = at if kept is None else at.take(kept)  # past the end: min-p cuts before top-p
    return _ids_at(at, opened, row.size // BLOCK), logits.take(at)


def _nucleus(logits: Row, top_p: float, least: float, most: float, mass: Callable[[], float]) -> Ids | None:
    """Returns the places of the shortest head that has `top_p` of `mass`, ascending.

    The mass is between `least` and `most` and is asked for if that is not enough to know. None if
    all of `logits` together have less.
    """
    order = (-logits).argsort(kind="stable")
    cumulative = np.exp(logits.take(order).astype(np.float64)).cumsum()
    first = int(cumulative.searchsorted(top_p * least))
    if first < int(cumulative.searchsorted(top_p * most)):
        first = int(cumulative.searchsorted(top_p * mass()))
    if first >= logits.size:
        return None
    kept = order[: first + 1]
    kept.sort()
    return kept


def _ids_at(at: Ids, opened: Ids, n: int) -> Ids:
    """Returns the ids of `at`, indices into what was opened.

    That are some of n blocks, (BLOCK, opened) raveled, and after them the logits that are in no block.
    """
    inside = int(at.searchsorted(BLOCK * opened.size))
    if inside < at.size:
        rest = at[inside:] + BLOCK * (n - opened.size)
        return np.concatenate([_ids_at(at[:inside], opened, n), rest]) if inside else rest
    rows, columns = np.divmod(at, opened.size)
    return rows * n + opened.take(columns)


def head_of(row: Row, ids: Ids, top: float, wanted: float) -> Ids:
    """Returns the shortest head of `ids` in descending order whose mass reaches `wanted`."""
    ids = ids[np.argsort(-row[ids], kind="stable")]
    cumulative = np.exp(row[ids].astype(np.float64) - top).cumsum()
    return ids[: int(cumulative.searchsorted(wanted)) + 1]


def binned_head(row: Row, floor: float, top: float, wanted: float) -> Ids:
    """Returns the same as `head_of` the logits from `floor` up, sorting only those near its end.

    Logits are binned by their distance below the largest; the bins before the one in which the mass is
    reached belong to the head as they are.
    """
    depth = below(row, top)
    weights = np.exp(depth)
    np.minimum(np.negative(depth, out=depth), DEEPEST, out=depth)
    bins = np.multiply(depth, BINS, out=depth).astype(np.int32)
    bins[row < floor] = OUTSIDE
    sums = np.bincount(bins, weights, OUTSIDE + 1)[:OUTSIDE].cumsum()
    last = int(sums.searchsorted(wanted))
    if last == OUTSIDE:
        return np.flatnonzero(bins < OUTSIDE)
    before = float(sums[last - 1]) if last else 0.0
    end = head_of(row, np.flatnonzero(bins == last), top, wanted - before)
    return np.concatenate([np.flatnonzero(bins < last), end])
