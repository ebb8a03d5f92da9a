"""Compare what llama.cpp reads with what the training did: the same tokens, the same logits.

Awkward text has scripts, combining marks, tabs, carriage returns, runs of blanks, digits of other scripts,
and half-written control tokens.
"""

import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer

from edgespec_train.hidden import Hidden
from edgespec_train.model_file import About
from edgespec_train.network import Llama
from edgespec_train.recipes.export import export

ODD = [
    "\t\tif x:\r\n\t\t\treturn 1\r\n", "   \n  \n\t \n", "naïve café — “quotes” … ‘x’", "Ünïcödé ß ſ ǅ ﬁ",
    "中文字符，測試。", "日本語のテキスト", "العربية ٠١٢٣٤٥", "हिन्दी १२३", "ไทย ๑๒๓",
    "🙂👩‍👩‍👧‍👦🏳️‍🌈", "a\u0301e\u0308",
    "\u00a0\u2003\u3000x", "½ ² Ⅷ ①", "x  =  12345678 ** 9", "it's we'll I'VE don't 'RE", "<|im_start|",
    "|im_end|>", "<think", "</tool_call", "\u200b\ufeff", "\x00\x01\x7f", "def f(a,b):\n    return a+b#c",
    "\n\n\n    \n", "            deep", "'''\"\"\"```", "🐍.py", "\u2028\u2029\x85\x0b\x0c",
    "Straße ΑΒΓ αβγ Я",
]  # fmt: skip


def awkward(rng: random.Random, count: int) -> Iterator[str]:
    """Yield texts joined from odd pieces, random characters and words."""
    ranges = [
        (32, 127),
        (160, 0x250),
        (0x370, 0x530),
        (0x5D0, 0x700),
        (0x900, 0xE00),
        (0x3040, 0x30FF),
        (0x4E00, 0x9FFF),
    ]
    for _ in range(count):
        parts = []
        for _ in range(rng.randrange(3, 12)):
            if rng.random() < 0.6:
                parts.append(rng.choice(ODD))
            else:
                low, high = rng.choice(ranges)
                parts.append("".join(chr(rng.randrange(low, high)) for _ in range(rng.randrange(1, 20))))
            parts.append(rng.choice(["", " ", "\n", "  ", "\t", "\r\n"]))
        yield "".join(parts)


def compare_tokens(path: Path, tokenizer: Tokenizer, texts: list[str]) -> tuple[int, int, int]:
    """Return characters, tokens, and how many texts llama.cpp splits differently."""
    different = tokens = 0
    with Hidden(path, None, context=64) as native:
        for text in texts:
            ours = tokenizer.encode(text).ids
            tokens += len(ours)
            different += ours != native.tokenise(text)
    return sum(map(len, texts)), tokens, different


def compare_logits(model: Llama, tokenizer: Tokenizer, text: str) -> tuple[float, float]:
    """Return the greatest logit difference of an F32 file, and the share of equal choices."""
    ids = tokenizer.encode(text).ids[:1024]
    with torch.inference_mode():
        ours = model(torch.tensor([ids]))[0].numpy()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "f32.gguf"
        export(model, tokenizer, path, "F32", About("proof", "proof", "proof", "0"))
        with Hidden(path, None, context=1024) as native:
            theirs = native.logits(ids)
    return float(np.abs(ours - theirs).max()), float((ours.argmax(1) == theirs.argmax(1)).mean())
