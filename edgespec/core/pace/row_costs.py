"""What rows cost before anything was timed: seconds of n rows in seconds of one, by number format.

Kernels take rows in groups of four or eight, so these curves are no straight lines: what a size that was not
timed costs follows from its neighbours only if the curve between them has the right shape.
Measured by `tests/benchmarks/formats.py` (all rows with outputs, a 0.6B target, 2 cores; AVX2: AMD EPYC,
2026-11-24; AVX-512: AMD Zen 5, a native build, 2026-11-23, up to 16 rows; 48 cost three times as much).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

Shape = Mapping[int, float]  # rows -> seconds in those of one row. Between the points: straight lines.

# Where nothing better is known. A card's is an assumption; large ones are flatter.
ON_CARD: Shape = {1: 1.0, 4: 1.05, 8: 1.15, 9: 1.4, 16: 1.5, 48: 2.0}
FLOAT: Shape = {1: 1.0, 4: 1.35, 8: 1.7, 12: 2.3, 48: 8.0}
QUANTISED: Shape = {1: 1.0, 2: 1.6, 4: 2.1, 8: 3.8, 16: 6.9, 48: 19.0}

# llama_ftype, as general.file_type has it
FORMATS = {
    0: "F32", 1: "F16", 2: "Q4_0", 7: "Q8_0", 14: "Q4_K", 15: "Q4_K", 16: "Q5_K", 17: "Q5_K", 18: "Q6_K",
    30: "IQ4_XS", 32: "BF16",
}  # fmt: skip
FLOATS = ("F32", "F16", "BF16")
INSTRUCTIONS = ("AVX512", "AVX2")  # as llama.cpp's build names them, the best first


def _shape(rows: str, costs: str) -> Shape:
    return dict(zip(map(int, rows.split()), map(float, costs.split()), strict=True))


_ALL = "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 24 32 48"
_SOME = "1 2 3 4 5 6 7 8 9 12 13 16 48"
MEASURED: dict[tuple[str, str], Shape] = {
    ("F16", "AVX2"): _shape(
        _ALL,
        "1 1.28 1.34 1.67 1.76 1.93 2.14 2.36 2.47 2.70 3.00 3.08 3.46 3.72 3.96 4.13 5.54 7.10 10.19",
    ),
    ("BF16", "AVX2"): _shape(
        _ALL,
        "1 1.08 1.22 1.32 1.50 1.65 1.80 2.05 2.03 2.16 2.33 2.41 2.68 2.84 2.90 3.26 4.75 5.99 8.88",
    ),
    ("Q8_0", "AVX2"): _shape(
        _ALL,
        "1 1.85 2.69 2.78 3.57 3.20 3.97 3.94 4.87 4.76 5.56 5.93 6.75 6.64 7.77 7.15 11.45 14.42 21.58",
    ),
    ("Q6_K", "AVX2"): _shape(
        _ALL,
        "1 1.78 2.41 3.33 3.73 4.39 4.81 8.26 8.65 9.20 8.18 8.85 9.66 9.89 10.35 9.66 15.41 16.02 22.14",
    ),
    ("Q5_K", "AVX2"): _shape(
        _ALL,
        "1 1.83 2.59 3.22 3.84 5.02 5.54 6.74 6.97 7.35 6.81 6.53 6.73 7.78 7.63 7.06 12.82 13.34 18.56",
    ),
    ("Q4_K", "AVX2"): _shape(
        _ALL,
        "1 1.76 2.53 2.65 3.62 4.03 4.38 6.28 7.03 8.27 7.23 8.67 8.11 9.73 10.38 8.61 14.01 15.33 24.72",
    ),
    ("IQ4_XS", "AVX2"): _shape(
        _ALL,
        "1 1.87 2.37 3.48 4.50 4.94 6.17 7.25 6.69 7.77 8.39 7.47 8.20 8.46 7.95 8.19 12.67 12.79 20.96",
    ),
    ("Q4_0", "AVX2"): _shape(
        _ALL,
        "1 1.83 2.74 2.46 3.88 3.33 4.52 4.26 5.12 5.28 6.24 5.84 7.32 8.33 7.80 7.47 10.91 14.05 20.87",
    ),
    ("Q8_0", "AVX512"): _shape(_SOME, "1 2.39 2.83 3.27 4.53 5.28 5.35 3.90 5.47 4.97 6.73 6.54 19.6"),
    ("Q4_0", "AVX512"): _shape(_SOME, "1 1.91 2.59 2.19 3.43 3.86 4.38 3.23 4.38 4.42 5.62 5.06 15.2"),
    ("Q4_K", "AVX512"): _shape(_SOME, "1 1.65 2.11 2.66 3.21 3.67 4.40 4.22 4.77 5.32 5.69 5.23 15.7"),
    ("F16", "AVX512"): _shape(_SOME, "1 1.25 1.37 1.28 1.37 1.37 1.62 1.71 1.74 2.04 2.23 2.47 7.4"),
}


def shape_of(file_type: str, features: Collection[str]) -> Shape:
    """Returns what rows of a model on the processor are assumed to cost.

    file_type: general.file_type of its file, or "". features: what llama.cpp's build uses ("AVX2", ...).
    """
    name = FORMATS.get(int(file_type), "") if file_type.isdigit() else ""
    for instructions in INSTRUCTIONS:
        if instructions in features and (name, instructions) in MEASURED:
            return MEASURED[name, instructions]
    return FLOAT if name in FLOATS else QUANTISED
