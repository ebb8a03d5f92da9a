"""ggml's number formats: how many bytes a tensor takes.

Layouts: ggml/src/ggml-common.h of llama.cpp.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Format:
    """One of ggml's formats. scales: where in a block its 16-bit scales are, and their value."""

    name: str
    weights: int  # in a block
    size: int  # bytes of a block
    scales: tuple[tuple[int, float], ...] = ()


FORMATS = {
    0: Format("F32", 1, 4),
    1: Format("F16", 1, 2),
    2: Format("Q4_0", 32, 18, ((0, 4e-3),)),
    3: Format("Q4_1", 32, 20, ((0, 4e-3), (2, -0.03))),
    6: Format("Q5_0", 32, 22, ((0, 2e-3),)),
    7: Format("Q5_1", 32, 24, ((0, 2e-3), (2, -0.03))),
    8: Format("Q8_0", 32, 34, ((0, 3e-4),)),
    10: Format("Q2_K", 256, 84, ((80, 2e-3), (82, 3e-3))),
    11: Format("Q3_K", 256, 110, ((108, 4e-4),)),
    12: Format("Q4_K", 256, 144, ((0, 1.2e-4), (2, 9e-4))),
    13: Format("Q5_K", 256, 176, ((0, 6e-5), (2, 9e-4))),
    14: Format("Q6_K", 256, 210, ((208, 1.5e-5),)),
    16: Format("IQ2_XXS", 256, 66, ((0, 3e-4),)),
    17: Format("IQ2_XS", 256, 74, ((0, 3e-4),)),
    18: Format("IQ3_XXS", 256, 98, ((0, 3e-4),)),
    19: Format("IQ1_S", 256, 50, ((0, 4e-3),)),
    20: Format("IQ4_NL", 32, 18, ((0, 3e-4),)),
    21: Format("IQ3_S", 256, 110, ((0, 2e-4),)),
    22: Format("IQ2_S", 256, 82, ((0, 3e-4),)),
    23: Format("IQ4_XS", 256, 136, ((0, 1e-5),)),
    30: Format("BF16", 1, 2),
    34: Format("TQ1_0", 256, 54, ((52, 0.02),)),
    35: Format("TQ2_0", 256, 66, ((64, 0.02),)),
    39: Format("MXFP4", 32, 17),
}


class UnknownFormatError(Exception):
    """A tensor has an unknown number format; the message is one sentence."""


def format_of(type_: int, name: str) -> Format:
    """Returns the format of a tensor. Raises UnknownFormatError."""
    if type_ not in FORMATS:
        raise UnknownFormatError(f"tensor {name} has the number format {type_}, which is not known here")
    return FORMATS[type_]


def n_bytes(shape: tuple[int, ...], type_: int, name: str = "it") -> int:
    """Returns the bytes of a tensor, padding left out. Raises UnknownFormatError."""
    layout, n = format_of(type_, name), 1
    for dimension in shape:
        n *= dimension
    return n // layout.weights * layout.size
