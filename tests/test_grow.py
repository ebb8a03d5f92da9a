"""Growing makes a model cost more and changes nothing it computes."""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest
import tiny_gguf
from gguf import GGMLQuantizationType, GGUFReader
from gguf.quants import dequantize
from numpy.typing import NDArray

import edgespec.llama.model  # noqa: F401  (keeps llama.cpp's log off the terminal)
import edgespec_models
from edgespec_models.grow.grow import SHAPES, fit, grow, grow_pair, parse_spec, read_shape
from edgespec_models.grow.packing import RANDOM
from edgespec_models.grow.source import GrowError, ModelShape

LARGE = ModelShape(n_vocab=700, d=160, layers=4, n_head=8, n_kv=4, head_dim=32, ffn=320)
PROMPT = [84, 104, 256, 300, 61, 310, 256, 290, 84]
MARGIN = 0.1  # logits have a standard deviation of 2; rounding to F16 was seen to move them by up to 0.03
TINY = Path(edgespec_models.__file__).parent / "tiny"
PAIR = [TINY / "target.gguf", TINY / "draft.gguf"]


class Scorer:
    """Scores tokens with llama.cpp's low-level API; `evaluated` is what the cache holds."""

    def __init__(self, context: Any, vocabulary: Any) -> None:
        self.context, self.vocabulary = context, vocabulary
        self.n_vocab = llama_cpp.llama_vocab_n_tokens(vocabulary)
        self.batch = llama_cpp.llama_batch_init(512, 0, 1)
        self.evaluated = 0

    def score(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Append tokens; return the logits after each, (len(tokens), n_vocab)."""
        self.batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            self.batch.token[i], self.batch.pos[i], self.batch.logits[i] = token, self.evaluated + i, 1
            self.batch.n_seq_id[i], self.batch.seq_id[i][0] = 1, 0
        assert llama_cpp.llama_decode(self.context, self.batch) == 0
        self.evaluated += len(tokens)
        address = [llama_cpp.llama_get_logits_ith(self.context, i) for i in range(len(tokens))]
        return np.array([np.ctypeslib.as_array(row, (self.n_vocab,)) for row in address])

    def tokenize(self, text: str, *, special: bool = True) -> list[int]:
        """Return the token ids of a text."""
        data, ids = text.encode(), (ctypes.c_int32 * 512)()
        count = llama_cpp.llama_tokenize(self.vocabulary, data, len(data), ids, 512, False, special)
        return list(ids[:count])


@contextmanager
def opened(path: Path) -> Iterator[Scorer]:
    """Load a model and give its scorer."""
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
    assert model, f"{path} does not load"
    params = llama_cpp.llama_context_default_params()
    params.n_ctx, params.n_threads, params.n_threads_batch = 512, 1, 1  # waiting for each other costs more
    context = llama_cpp.llama_init_from_model(model, params)
    scorer = Scorer(context, llama_cpp.llama_model_get_vocab(model))
    try:
        yield scorer
    finally:
        llama_cpp.llama_batch_free(scorer.batch)
        llama_cpp.llama_free(context)
        llama_cpp.llama_model_free(model)


def scores(path: Path, tokens: Sequence[int]) -> NDArray[np.float32]:
    """Score one list of tokens with a freshly loaded model."""
    with opened(path) as scorer:
        return scorer.score(tokens)


def greedy(path: Path, prompt: Sequence[int], n: int) -> tuple[list[int], NDArray[np.float32]]:
    """Continue a prompt by its most likely tokens; return them and the logits each was chosen from."""
    tokens, rows = [], []
    with opened(path) as scorer:
        row = scorer.score(prompt)[-1]
        for _ in range(n):
            rows.append(row)
            tokens.append(int(row.argmax()))
            row = scorer.score(tokens[-1:])[-1]
    return tokens, np.array(rows)


def assert_same_text(
    source: Path, grown: Path, prompt: Sequence[int], n: int = 32, margin: float = MARGIN
) -> None:
    """Compare greedy texts; they may part only where the source's two best are closer than the margin."""
    (expected, rows), (got, _) = greedy(source, prompt, n), greedy(grown, prompt, n)
    for token, other, row in zip(expected, got, rows, strict=True):
        second, best = np.sort(row)[-2:]
        if token != other:
            assert best - second < margin, f"{expected} became {got}"
            return


def assert_preserved(source: Path, grown: Path, *, margin: float = MARGIN) -> None:
    """Compare the logits of a random text, and greedy texts."""
    before = scores(source, np.random.default_rng(7).integers(0, 500, 48).tolist())
    after = scores(grown, np.random.default_rng(7).integers(0, 500, 48).tolist())
    real = before.shape[1]
    assert np.isfinite(after).all()
    assert np.abs(after[:, :real] - before).max() < margin
    if after.shape[1] > real:
        assert after[:, real:].max() < before.min() - 100
    assert_same_text(source, grown, PROMPT, margin=margin)


SOURCES: dict[str, dict[str, Any]] = {
    "F32, own key-value heads": {},
    "F16, tied, grouped": {"dtype": "F16", "tied": True, "n_kv": 2},
    "F32, all heads on one": {"n_kv": 1},
    "F16, odd sizes": {"dtype": "F16", "d": 48, "n_head": 3, "head_dim": 16, "ffn": 80, "tied": True},
    "F32, large epsilon": {"eps": 1.0, "tied": True},
    "BF16": {"dtype": "BF16"},
}


@pytest.mark.parametrize("options", SOURCES.values(), ids=SOURCES)
def test_grown_in_every_dimension_computes_the_same(tmp_path: Path, options: dict[str, Any]) -> None:
    source = tiny_gguf.write_llama(tmp_path / "small.gguf", **options)
    grow(source, tmp_path / "large.gguf", LARGE)
    assert read_shape(tmp_path / "large.gguf") == LARGE
    assert_preserved(source, tmp_path / "large.gguf")


DIMENSIONS: dict[str, ModelShape] = {
    "nothing": ModelShape(512, 64, 2, 4, 2, 16, 128),
    "width": ModelShape(512, 256, 2, 4, 2, 16, 128),
    "layers": ModelShape(512, 64, 5, 4, 2, 16, 128),
    "heads": ModelShape(512, 64, 2, 12, 6, 16, 128),
    "larger groups": ModelShape(512, 64, 2, 8, 2, 16, 128),
    "smaller groups, key-value heads repeated": ModelShape(512, 64, 2, 8, 8, 16, 128),
    "size of heads": ModelShape(512, 64, 2, 4, 2, 64, 128),
    "size of heads by three": ModelShape(512, 64, 2, 4, 2, 48, 128),
    "feed-forward": ModelShape(512, 64, 2, 4, 2, 16, 512),
    "vocabulary": ModelShape(1000, 96, 2, 4, 2, 16, 128),
}


@pytest.mark.parametrize("shape", DIMENSIONS.values(), ids=DIMENSIONS)
def test_each_dimension_can_grow_alone(tmp_path: Path, shape: ModelShape) -> None:
    source = tiny_gguf.write_llama(tmp_path / "small.gguf", n_kv=2, dtype="F16", seed=3)
    grow(source, tmp_path / "large.gguf", shape)
    assert_preserved(source, tmp_path / "large.gguf")


MUTATIONS: dict[str, tuple[str, Any]] = {
    "queries not scaled": ("grow.tensors._query_scale", lambda head_dim, grown: 1.0),
    "rope pairs not moved": (
        "grow.tensors.rope_positions",
        lambda head_dim, grown, **_: np.arange(head_dim),
    ),
    "norms not scaled": ("grow.tensors._norm_scale", lambda d, grown: 1.0),
    "epsilon not scaled": ("grow.file.grown_eps", lambda source, shape: source.eps),
    "epsilon not relieved of 2 c^2": (
        "grow.file.grown_eps",
        lambda source, shape: source.eps * source.shape.d / shape.d,
    ),
    "added weights not silenced": ("grow.tensors.ZERO", RANDOM),
    "heads mapped without their groups": (
        "grow.tensors.carried_heads",
        lambda source, shape: ([0, 1, 2, 3, -1, -1, -1, -1], [0, 1]),
    ),
}


@pytest.mark.parametrize(("name", "broken"), MUTATIONS.values(), ids=MUTATIONS)
def test_each_step_of_the_maths_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, broken: Any
) -> None:
    """Leave one step out: the comparison above must notice (so it would notice if it were lost)."""
    source = tiny_gguf.write_llama(tmp_path / "small.gguf", n_kv=2, eps=1.0)
    large = ModelShape(700, 160, 4, 8, 2, 32, 320)  # groups grow from two to four heads
    monkeypatch.setattr(f"edgespec_models.{name}", broken)
    grow(source, tmp_path / "large.gguf", large)
    with pytest.raises(AssertionError):
        assert_preserved(source, tmp_path / "large.gguf")


@pytest.mark.parametrize("own", ["Q8_0", "Q4_0"])
def test_quantised_weights_survive_to_the_last_bit(tmp_path: Path, own: str) -> None:
    """What the source holds in blocks is written in the same blocks; only added layers take the new type."""
    options: dict[str, Any] = {"d": 64, "n_head": 2, "ffn": 128, "dtype": own, "tied": True}
    source = tiny_gguf.write_llama(tmp_path / "small.gguf", **options)
    grow(source, tmp_path / "large.gguf", ModelShape(700, 160, 3, 4, 4, 128, 320), dtype="Q4_0")
    small = {tensor.name: tensor for tensor in GGUFReader(source).tensors}
    large = {tensor.name: tensor for tensor in GGUFReader(tmp_path / "large.gguf").tensors}
    for name, rows, cols in (
        ("token_embd.weight", slice(512), slice(64)),
        ("blk.1.ffn_gate.weight", slice(128), slice(64)),
        ("blk.1.ffn_down.weight", slice(64), slice(128)),
        ("blk.0.attn_v.weight", slice(32), slice(64)),
        ("blk.0.attn_q.weight", [0, 1, 8, 9], slice(64)),
    ):
        before, after = (dequantize(t[name].data, t[name].tensor_type) for t in (small, large))
        expected = before[:4] * 2 if "attn_q" in name else before[:, :]
        assert large[name].tensor_type.name == own
        np.testing.assert_array_equal(after[rows, cols], expected[: after[rows, cols].shape[0]])
    assert large["blk.2.ffn_up.weight"].tensor_type == GGMLQuantizationType.Q4_0
    assert_preserved(source, tmp_path / "large.gguf", margin=0.5)


@pytest.mark.parametrize(("dtype", "kept"), [("F16", "F16"), ("Q8_0", "Q8_0"), ("Q4_0", "Q8_0")])
def test_types(tmp_path: Path, dtype: str, kept: str) -> None:
    source = tiny_gguf.write_llama(tmp_path / "small.gguf")
    grow(source, tmp_path / "large.gguf", LARGE, dtype=dtype)
    types = {tensor.name: tensor.tensor_type.name for tensor in GGUFReader(tmp_path / "large.gguf").tensors}
    assert types["token_embd.weight"] == types["output.weight"] == types["blk.0.attn_q.weight"] == kept
    assert types["blk.3.attn_q.weight"] == dtype
    assert types["blk.3.attn_norm.weight"] == "F32"


def test_a_related_draft_guesses_as_well_after_growing(tmp_path: Path) -> None:
    """Growing keeps what a pair agrees on, which is what makes a grown pair worth measuring."""
    target = tiny_gguf.write_llama(tmp_path / "target.gguf", layers=1)
    draft = tiny_gguf.write_llama(tmp_path / "draft.gguf", layers=1, noise=0.2)
    tokens = np.random.default_rng(1).integers(0, 500, 200).tolist()
    before = scores(target, tokens).argmax(1) == scores(draft, tokens).argmax(1)
    for source in (target, draft):
        grow(source, source.with_stem(f"large-{source.stem}"), LARGE)
    large = [scores(tmp_path / f"large-{name}.gguf", tokens).argmax(1) for name in ("target", "draft")]
    assert 0.2 < before.mean() < 0.95
    assert abs((large[0] == large[1]).mean() - before.mean()) < 0.05


def test_metadata_is_carried_over(tmp_path: Path) -> None:
    extra = {"general.sampling.temp": 0.5, "general.license": "MIT", "tokenizer.ggml.fim_pre_token_id": 300}
    source = tiny_gguf.write_llama(tmp_path / "small.gguf", metadata=extra, rope_freq_base=500_000.0)
    grow(source, tmp_path / "large.gguf", LARGE)
    small, large = GGUFReader(source).fields, GGUFReader(tmp_path / "large.gguf").fields
    changed = {key for key in small if key in large and small[key].contents() != large[key].contents()}
    assert not small.keys() - large.keys()
    assert {key for key in changed if not key.startswith(("llama.", "GGUF."))} == {
        "general.name",
        "tokenizer.ggml.tokens",
        "tokenizer.ggml.token_type",
    }
    assert large["tokenizer.ggml.tokens"].contents()[:512] == small["tokenizer.ggml.tokens"].contents()
    assert "tiny random llama" in large["edgespec.grown_from"].contents()


def test_no_text_becomes_a_dummy_token(tmp_path: Path) -> None:
    vocabulary = tiny_gguf.make_vocabulary()
    taken = tiny_gguf.altered(vocabulary, texts={400: "<|grown_600|>"})
    source = tiny_gguf.write_llama(tmp_path / "small.gguf", vocab=taken)
    grow(source, tmp_path / "large.gguf", LARGE)
    text = "the water <|grown_650|> \u00e9 <|grown_600|><<|grown_600|>> <|im_end|>"
    with opened(source) as small, opened(tmp_path / "large.gguf") as large:
        for special in (True, False):
            assert large.tokenize(text, special=special) == small.tokenize(text, special=special)


def test_a_model_without_vocabulary_grows_too(tmp_path: Path) -> None:
    source = tiny_gguf.write_llama(tmp_path / "small.gguf", vocab="none")
    grow(source, tmp_path / "large.gguf", LARGE)
    assert_preserved(source, tmp_path / "large.gguf")


def test_progress_reaches_the_total_and_only_the_finished_file_remains(tmp_path: Path) -> None:
    source = tiny_gguf.write_llama(tmp_path / "small.gguf")
    calls: list[tuple[int, int]] = []
    grow(source, tmp_path / "large.gguf", LARGE, on_progress=lambda done, total: calls.append((done, total)))
    done = [call[0] for call in calls]
    assert done == sorted(done) and len(calls) > 20
    assert calls[-1][0] == calls[-1][1] == {call[1] for call in calls}.pop()
    assert (tmp_path / "large.gguf").stat().st_size > calls[-1][1]
    assert {path.name for path in tmp_path.iterdir()} == {"small.gguf", "large.gguf"}


def test_the_same_call_writes_the_same_bytes(tmp_path: Path) -> None:
    source = tiny_gguf.write_llama(tmp_path / "small.gguf")
    written = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        grow(source, tmp_path / name, LARGE, seed=seed)
        written.append((tmp_path / name).read_bytes())
    assert written[0] == written[1] != written[2]


def test_interruption_leaves_nothing_and_the_old_file_alone(tmp_path: Path) -> None:
    source = tiny_gguf.write_llama(tmp_path / "small.gguf")
    destination = tmp_path / "large.gguf"
    destination.write_bytes(b"an older one")

    def interrupt(done: int, total: int) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        grow(source, destination, LARGE, on_progress=interrupt)
    assert destination.read_bytes() == b"an older one"
    assert {path.name for path in tmp_path.iterdir()} == {"small.gguf", "large.gguf"}


def test_what_a_killed_process_left_is_cleared(tmp_path: Path) -> None:
    source = tiny_gguf.write_llama(tmp_path / "small.gguf")
    dead, alive = (tmp_path / f"large.gguf.{os.getpid()}-{n}.part" for n in (1, 2))
    dead.touch()
    os.utime(dead, (0, 0))  # before this process began: of another that had its number
    alive.touch()
    grow(source, tmp_path / "large.gguf", LARGE)
    assert not dead.exists() and alive.exists()


def test_a_full_disk_is_found_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tiny_gguf.write_llama(tmp_path / "small.gguf")
    usage = shutil.disk_usage(tmp_path)._replace(free=50_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    with pytest.raises(GrowError, match=r"needs 0\.0 GB in .* where 0\.1 GB are free: make room"):
        grow(source, tmp_path / "large.gguf", LARGE)
    with pytest.raises(GrowError, match=r"growing small.gguf and small.gguf needs 1\.\d GB in .* make room"):
        grow_pair(source, source, tmp_path, parse_spec("0.6B-F16"))
    assert [path.name for path in tmp_path.iterdir()] == ["small.gguf"]


def test_a_disk_that_fills_up_in_the_meantime_leaves_nothing(tmp_path: Path) -> None:
    source = tiny_gguf.write_llama(tmp_path / "small.gguf")

    def fill(done: int, total: int) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(GrowError, match="was not written .*No space left.* make room"):
        grow(source, tmp_path / "large.gguf", LARGE, on_progress=fill)
    assert [path.name for path in tmp_path.iterdir()] == ["small.gguf"]


def test_a_pair_is_grown_once_and_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SHAPES, "0.6B", (LARGE, ModelShape(700, 96, 2, 4, 2, 16, 128)))
    spec, cache = parse_spec("0.6b-q8_0"), tmp_path / "cache" / "grown"
    target = tiny_gguf.write_llama(tmp_path / "target.gguf")
    draft = tiny_gguf.write_llama(tmp_path / "draft.gguf", layers=1, d=32)
    calls: list[tuple[int, int]] = []

    def note(done: int, total: int) -> None:
        calls.append((done, total))

    first = grow_pair(target, draft, cache, spec, on_progress=note)
    assert calls[-1][0] == calls[-1][1] and len({total for _, total in calls}) == 1
    assert [read_shape(path).n_vocab for path in first] == [700, 700]
    times = [path.stat().st_mtime_ns for path in first]
    calls.clear()
    assert grow_pair(target, draft, cache, spec, on_progress=note) == first
    assert not calls and [path.stat().st_mtime_ns for path in first] == times

    tiny_gguf.write_llama(draft, layers=1, d=32, seed=9)  # a draft trained anew is another file
    again = grow_pair(target, draft, cache, spec, on_progress=note)
    assert again[0] == first[0] and again[1] != first[1]
    assert calls[-1][0] == calls[-1][1] < first[0].stat().st_size


def test_named_sizes(tmp_path: Path) -> None:
    spec = parse_spec(" 0.6b-f16 ")
    assert (spec.name, spec.dtype) == ("0.6B-F16", "F16")
    for name, (target, draft) in SHAPES.items():
        assert target.parameters == pytest.approx(float(name[:-1]) * 1e9, rel=0.25)
        assert 0.04 < draft.parameters / target.parameters < 0.10
        assert target.n_vocab == draft.n_vocab


@pytest.mark.parametrize("text", ["", "0.6B", "0.6B-", "0.7B-F16", "0.6B-Q5_K", "0.6B_F16", "F16-0.6B"])
def test_a_bad_size_names_the_good_ones(text: str) -> None:
    with pytest.raises(GrowError, match=r"0\.6B, 1\.1B, 1B, 3B, 8B.*F16, Q8_0, Q4_0.*example 0\.6B-F16"):
        parse_spec(text)


def test_a_named_size_is_widened_where_the_source_does_not_fit() -> None:
    source = ModelShape(5000, 64, 9, 8, 8, 24, 100)
    assert fit(ModelShape(700, 64, 4, 4, 2, 32, 96), source) == ModelShape(5000, 96, 9, 8, 8, 48, 128)


def test_a_shape_that_cannot_hold_the_source_is_widened(tmp_path: Path) -> None:
    source, narrow = tiny_gguf.write_llama(tmp_path / "small.gguf"), ModelShape(300, 32, 1, 4, 1, 8, 32)
    grow(source, tmp_path / "large.gguf", narrow)
    assert read_shape(tmp_path / "large.gguf") == fit(narrow, read_shape(source)) != narrow


BAD_SOURCES: dict[str, tuple[dict[str, Any], str]] = {
    "bias": ({"tensors": {"blk.0.attn_q.bias": np.zeros(64, np.float32)}}, "tensor blk.0.attn_q.bias"),
    "rope factors": ({"tensors": {"rope_freqs.weight": np.ones(8, np.float32)}}, "tensor rope_freqs.weight"),
    "no embedding": ({"tensors": {"token_embd.weight": None}}, "tensor token_embd.weight"),
    "missing": ({"tensors": {"blk.1.ffn_up.weight": None}}, "tensor blk.1.ffn_up.weight"),
    "wrong size": ({"tensors": {"output_norm.weight": np.ones(32, np.float32)}}, "tensor output_norm.weight"),
    "no epsilon": ({"eps": 1e-12}, "epsilon of 1e-12, too small"),
}


@pytest.mark.parametrize(("options", "sentence"), BAD_SOURCES.values(), ids=BAD_SOURCES)
def test_a_source_with_other_tensors_is_refused(
    tmp_path: Path, options: dict[str, Any], sentence: str
) -> None:
    source = tiny_gguf.write_llama(tmp_path / "small.gguf", **options)
    with pytest.raises(GrowError, match=sentence):
        grow(source, tmp_path / "large.gguf", LARGE)
    assert [path.name for path in tmp_path.iterdir()] == ["small.gguf"]


def test_files_that_are_no_llama_models_are_refused(tmp_path: Path) -> None:
    whole = tiny_gguf.write_llama(tmp_path / "small.gguf").read_bytes()
    hybrid = tiny_gguf.write_hybrid(tmp_path / "hybrid.gguf")
    (tmp_path / "short").write_bytes(whole[: len(whole) // 2])
    for path, sentence in (
        (tmp_path / "short", "short cannot be grown: .*short is (cut short|damaged)"),
        (hybrid, "architecture 'lfm2', and only 'llama' and 'mimo2' grow"),
        (tmp_path / "none.gguf", "there is no file"),
    ):
        with pytest.raises(GrowError, match=sentence):
            grow(path, tmp_path / "large.gguf", LARGE)
    with pytest.raises(GrowError, match="cannot be used"):
        grow(tmp_path / "small.gguf", tmp_path / "no" / "folder" / "large.gguf", LARGE)


@pytest.mark.sample(1)
@pytest.mark.parametrize("source", PAIR, ids=lambda path: path.stem)
@pytest.mark.parametrize("dtype", ["F16", pytest.param("Q8_0", marks=pytest.mark.slow)])
def test_the_embedded_pair_says_the_same_after_growing(tmp_path: Path, source: Path, dtype: str) -> None:
    if not source.exists():
        pytest.skip(f"the embedded {source.stem} is not there yet")
    small = read_shape(source)
    wanted = ModelShape(
        small.n_vocab + 500, small.d + 64, small.layers + 2, small.n_head + 2, 1, 64, small.ffn + 64
    )
    grow(source, tmp_path / "large.gguf", fit(wanted, small), dtype=dtype)
    prompt = "<|im_start|>user\nWhat does itertools.chain do?<|im_end|>\n<|im_start|>assistant\n"
    with opened(source) as before, opened(tmp_path / "large.gguf") as after:
        tokens = before.tokenize(prompt)
        assert after.tokenize(prompt) == tokens
        rows = before.score(tokens), after.score(tokens)
    assert np.abs(rows[0] - rows[1][:, : small.n_vocab]).max() < 0.5
    assert rows[1][:, small.n_vocab :].max() < rows[0].min() - 50
    assert_same_text(source, tmp_path / "large.gguf", tokens, n=48, margin=0.25)
