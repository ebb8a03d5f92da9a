"""Write a tiny model that says one text and ends, whatever it is asked, in tokens that no tokeniser chooses.

Each token of the text has a direction of its own in the embedding, and what follows it is read off that:
attention adds nothing. Every other token is followed by the first one.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tiny_gguf import CONTROL, NORMAL, TOKEN_CONTROL, Vocabulary, byte_letters, write_llama

CUT = "¦"  # in a text: a token ends here
D, FFN = 256, 128


def write_scripted(path: Path, text: str, chat_template: str, *, tags: Sequence[str]) -> Path:
    """Writes the model, and returns `path`. tags: its control tokens; the last one ends the turn."""
    script = pieces(text, [tag for tag in tags if tag in text])
    letters = byte_letters()
    spelt = [one if one in tags else "".join(letters[byte] for byte in one.encode()) for one in script]
    control = [*tags, CONTROL[0]]
    texts = (*letters, *spelt, *(tag for tag in control if tag not in spelt))
    types = tuple(TOKEN_CONTROL if one in control else NORMAL for one in texts)
    vocabulary = Vocabulary(texts, types, (), bos=texts.index(CONTROL[0]), eos=texts.index(tags[-1]))
    embedding, output = np.zeros((2, len(texts), D), np.float32)
    embedding[:, 0] = 1
    for i, token in enumerate([*range(256, 256 + len(script)), vocabulary.eos]):
        embedding[token] = np.eye(D)[i + 1]
        output[token, i] = 4
    fixed = {
        "token_embd.weight": embedding,
        "output.weight": output,
        "output_norm.weight": np.ones(D, np.float32),
        "blk.0.attn_output.weight": np.zeros((D, D), np.float32),
        "blk.0.ffn_down.weight": np.zeros((D, FFN), np.float32),
    }
    return write_llama(
        path,
        d=D,
        ffn=FFN,
        layers=1,
        vocab=vocabulary,
        chat_template=chat_template,
        context_length=8192,
        tensors=fixed,
    )


def pieces(text: str, tags: Sequence[str]) -> list[str]:
    """Returns a text in pieces of which no two are equal, and each of the tags is one of its own."""
    rng, ends = random.Random(text), (*tags, CUT)
    for _ in range(10_000):
        found, at = list[str](), 0
        while at < len(text):
            tag = next((tag for tag in tags if text.startswith(tag, at)), "")
            stops = [place for end in ends if (place := text.find(end, at)) > at]
            found.append(tag or text[at : min([at + rng.randint(2, 9), *stops])])
            at += len(found[-1])
            at += text.startswith(CUT, at)
        if len(set(found)) == len(found) and all(len(one.encode()) > 1 for one in found):
            return found
    raise ValueError(f"no pieces of {text!r} are all different")
