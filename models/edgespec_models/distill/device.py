"""Say where torch computes: on a GPU where it has one, else on the processor."""

import torch


def choose() -> torch.device:
    """Return the device that networks are put on."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
