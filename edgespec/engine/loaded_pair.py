"""What the engine sees of a loaded pair."""

from collections.abc import Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edgespec.core.pace.costs import Costs
from edgespec.core.request import Request
from edgespec.core.stream import Stream
from edgespec.core.values import ModelName
from edgespec.engine.slots import Cache
from edgespec.pairs.adapters import Scales


class LoadedPair(Protocol):
    """A target and its draft, loaded; `Pair` is one, tests have others."""

    @property
    def slots(self) -> int:
        """Number of sequences in its contexts."""

    @property
    def n_rows(self) -> int:
        """Rows, and tokens of several sequences, that one evaluation of the target may have."""

    @property
    def cells(self) -> int:
        """Tokens that all sequences may hold together."""

    @property
    def contexts(self) -> Mapping[ModelName, Cache]:
        """The contexts of the target and, if there is one, the draft."""

    def costs(self) -> Costs:
        """Returns what evaluations cost here."""

    def scales(self, request: Request) -> Scales:
        """Returns the scale of each LoRA adapter for a request."""

    def adapt(self, scales: Scales) -> None:
        """Has the target evaluate with adapters in these scales."""

    def stream(self, prompt: NDArray[np.int32], request: Request) -> Stream:
        """Prepares a generation."""
