"""What rows cost before anything was timed: seconds of n rows in seconds of one, by number format.

Kernels take rows in groups of four or eight, so these curves are no straight lines: what a size that was not
timed costs follows from its neighbours only if the curve between them has the right shape.
Measured by `tests/benchmarks/formats.py` (all rows with outputs, a 0.6B target, 2 cores, native builds; AVX2:
AMD EPYC, 2026-11-24; AVX-512: AMD EPYC of Zen 4, 2026-11-24; of Q8_0, Q4_0, Q4_K and F16 up to 16 rows the
geometric mean of that and a Zen 5, 2026-11-23, which differ by up to 1.75 times).
"""

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


_ROWS = (*range(1, 17), 24, 32, 48)


def _shape(costs: str) -> Shape:
    return dict(zip(_ROWS, map(float, costs.split()), strict=True))


MEASURED: dict[tuple[str, str], Shape] = {
    ("F16", "AVX2"): _shape(
        "1 1.28 1.34 1.67 1.76 1.93 2.14 2.36 2.47 2.70 3.00 3.08 3.46 3.72 3.96 4.13 5.54 7.10 10.19"
    ),
    ("BF16", "AVX2"): _shape(
        "1 1.08 1.22 1.32 1.50 1.65 1.80 2.05 2.03 2.16 2.33 2.41 2.68 2.84 2.90 3.26 4.75 5.99 8.88"
    ),
    ("Q8_0", "AVX2"): _shape(
        "1 1.85 2.69 2.78 3.57 3.20 3.97 3.94 4.87 4.76 5.56 5.93 6.75 6.64 7.77 7.15 11.45 14.42 21.58"
    ),
    ("Q6_K", "AVX2"): _shape(
        "1 1.78 2.41 3.33 3.73 4.39 4.81 8.26 8.65 9.20 8.18 8.85 9.66 9.89 10.35 9.66 15.41 16.02 22.14"
    ),
    ("Q5_K", "AVX2"): _shape(
        "1 1.83 2.59 3.22 3.84 5.02 5.54 6.74 6.97 7.35 6.81 6.53 6.73 7.78 7.63 7.06 12.82 13.34 18.56"
    ),
    ("Q4_K", "AVX2"): _shape(
        "1 1.76 2.53 2.65 3.62 4.03 4.38 6.28 7.03 8.27 7.23 8.67 8.11 9.73 10.38 8.61 14.01 15.33 24.72"
    ),
    ("IQ4_XS", "AVX2"): _shape(
        "1 1.87 2.37 3.48 4.50 4.94 6.17 7.25 6.69 7.77 8.39 7.47 8.20 8.46 7.95 8.19 12.67 12.79 20.96"
    ),
    ("Q4_0", "AVX2"): _shape(
        "1 1.83 2.74 2.46 3.88 3.33 4.52 4.26 5.12 5.28 6.24 5.84 7.32 8.33 7.80 7.47 10.91 14.05 20.87"
    ),
    ("F16", "AVX512"): _shape(
        "1 1.51 1.61 1.59 1.67 1.70 2.06 2.18 2.23 2.45 2.49 2.67 2.90 3.03 3.14 3.25 4.37 5.52 8.06"
    ),
    ("BF16", "AVX512"): _shape(
        "1 1.97 2.27 2.56 2.66 2.72 2.99 3.27 3.08 3.22 3.69 3.68 3.67 3.91 4.03 4.24 5.53 7.29 10.61"
    ),
    ("Q8_0", "AVX512"): _shape(
        "1 2.26 2.61 2.85 4.07 4.43 4.76 3.77 5.02 5.12 5.42 4.94 6.31 6.41 6.86 6.31 8.17 10.28 15.23"
    ),
    ("Q6_K", "AVX512"): _shape(
        "1 2.18 2.52 2.89 3.40 3.81 4.29 6.84 6.96 6.80 6.97 6.96 7.13 7.18 7.26 7.27 10.14 10.08 13.66"
    ),
    ("Q5_K", "AVX512"): _shape(
        "1 2.12 2.70 3.15 3.62 4.30 5.00 4.65 4.63 4.87 4.94 5.07 5.72 5.28 5.72 5.76 7.81 8.86 11.04"
    ),
    ("Q4_K", "AVX512"): _shape(
        "1 1.75 2.23 2.93 3.35 3.91 4.49 4.98 5.39 5.85 5.97 6.22 6.47 6.83 7.21 6.09 9.26 10.82 14.37"
    ),
    ("IQ4_XS", "AVX512"): _shape(
        "1 1.97 2.59 3.19 3.64 4.16 4.86 4.21 4.80 4.38 4.42 4.92 4.67 5.01 4.47 4.90 7.17 6.82 10.23"
    ),
    ("Q4_0", "AVX512"): _shape(
        "1 1.99 2.53 2.41 3.57 4.00 4.52 3.63 4.77 5.10 5.56 4.89 6.06 6.41 6.66 5.67 8.02 9.94 14.51"
    ),
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
