"""Train and hold the pair's vocabulary: 4,096 byte-level BPE pieces, control tokens first.

Pre-tokenisation is the expression of `PRE` as llama.cpp knows it under the same name
(`tokenizer.ggml.pre`), so that training and llama.cpp cut text alike. The control tokens come first,
at fixed ids, so that a later vocabulary of another size keeps them.
"""

from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from edgespec_train.recipes.marks import SPECIAL
from edgespec_train.target_file import open_target

VOCAB = 4096
# llama.cpp src/llama-vocab.cpp, LLAMA_VOCAB_PRE_TYPE_GPT2, _LLAMA3 and _QWEN2.
EXPRESSIONS = {
    "gpt-2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "llama-bpe": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
    "qwen2": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
}
PRE = "gpt-2"


def train_tokenizer(texts: Iterable[str], pre: str = PRE, vocab: int = VOCAB) -> Tokenizer:
    """Learn merges from texts; ids 0..len(SPECIAL)-1 are the control tokens."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=pre == "llama-bpe"))
    _cut_as(pre, tokenizer)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=SPECIAL,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        max_token_length=24,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _cut_as(pre: str, tokenizer: Tokenizer) -> None:
    """Have text cut, and tokens joined, as llama.cpp does under this name."""
    split = pre_tokenizers.Split(Regex(EXPRESSIONS[pre]), behavior="isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()


def read_tokenizer(path: Path) -> Tokenizer:
    """Return the vocabulary of a file that `export.py` wrote."""
    file = open_target(path)
    pre, merged, pieces = (file.value(f"tokenizer.ggml.{key}") for key in ("pre", "merges", "tokens"))
    merges = [(a, b) for a, b in (merge.split(" ") for merge in merged)]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=pre == "llama-bpe"))
    _cut_as(pre, tokenizer)
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    return tokenizer


def token_id(tokenizer: Tokenizer, text: str) -> int:
    """Return the id of a piece that must exist."""
    found = tokenizer.token_to_id(text)
    if found is None:
        raise KeyError(f"{text!r} is not in the vocabulary of {tokenizer.get_vocab_size()} pieces")
    return int(found)
