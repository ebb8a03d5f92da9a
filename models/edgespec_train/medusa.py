"""Define Medusa heads: each guesses one position further, from what the target's output matrix reads.

Head i sees the state after token t and guesses token t + 2 + i: the state, plus a SiLU of a linear map of it,
goes through the target's own output rows, which are not trained (https://arxiv.org/abs/2401.10774).
"""

from collections.abc import Iterator

import torch.nn.functional as F
from torch import Tensor, nn

from edgespec_train.network import Shape

HEADS = 4


class MedusaNetwork(nn.Module):
    """Guess the tokens after the next one."""

    def __init__(self, shape: Shape, rows: Tensor) -> None:
        """rows: of the target's output matrix, for the tokens that may be guessed (V, D)."""
        super().__init__()
        self.shape = shape
        self.maps = nn.ModuleList(nn.Linear(shape.width, shape.width) for _ in range(HEADS))
        self.output = nn.Linear(shape.width, shape.vocab, bias=False)
        for linear in self.linears():  # each begins with the target's own guess of the next token
            nn.init.zeros_(linear.weight)
            nn.init.zeros_(linear.bias)
        self.output.weight.data.copy_(rows)
        self.output.weight.requires_grad_(False)

    def linears(self) -> list[nn.Linear]:
        """Return the maps, first to last."""
        return [linear for linear in self.maps if isinstance(linear, nn.Linear)]

    def guesses(self, states: Tensor) -> Iterator[Tensor]:
        """Yield for each head what the output rows read (B, T, D), from the target's states (B, T, D)."""
        for linear in self.linears():
            yield states + F.silu(linear(states))
