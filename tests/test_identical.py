"""--byte-identical: neither guesses nor threads, pieces or what was cached change a bit of a text."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_gguf
from numpy.typing import NDArray

from edgespec.commands.serve import flags as serve
from edgespec.core.loop import Want
from edgespec.core.request import Request
from edgespec.engine.engine import Engine
from edgespec.engine.pair import Pair
from edgespec.errors import SettingError
from edgespec.llama.context import Context, ContextSettings
from edgespec.llama.identical import PIECES, check_identical
from edgespec.llama.model import Model
from edgespec.pairs.settings import PairSettings
from edgespec.sampling.sampler import Sampling

GREEDY = Sampling(temperature=0)
SEEDED = Sampling(temperature=0.8)
SHIPPED = "shipped"
FORMATS = ("F32", "F16", "Q8_0", "Q4_0", SHIPPED)
LONG = 700  # tokens: past where a row of flash attention is split


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, tiny_target: Path) -> Iterator[dict[str, Model]]:
    folder = tmp_path_factory.mktemp("formats")
    shape = {"d": 256, "ffn": 512, "n_head": 4, "n_kv": 2, "context_length": 1024}
    paths = {name: folder / f"{name}.gguf" for name in FORMATS if name != SHIPPED}
    for name, path in paths.items():
        tiny_gguf.write_llama(path, dtype=name, **shape)
    loaded = {
        name: Model(path, extra_buffers=False) for name, path in {**paths, SHIPPED: tiny_target}.items()
    }
    yield loaded
    for model in loaded.values():
        model.close()


def context(model: Model, **wanted: Any) -> Context:
    how = {"n_ctx": 1024, "n_rows": 49, "threads": 1, "identical": True, **wanted}
    return Context(model, ContextSettings(**how))


def rows_of(
    model: Model, tokens: NDArray[np.int32], sizes: Iterator[int], **wanted: Any
) -> NDArray[np.float32]:
    """Returns the logits of all tokens, evaluated in pieces, with guesses that are withdrawn in between."""
    rng, found, end = np.random.default_rng(5), [], 0
    with context(model, **wanted) as made:
        while end < tokens.size:
            n = min(next(sizes), tokens.size - end)
            tail = tuple(rng.integers(0, 500, rng.integers(0, 49 - n + 1)).tolist()) if n < 49 else ()
            rows = made.score([Want(tokens[: end + n], tail, n + len(tail))])[0]
            found.append(rows[:n].copy())
            end += n
    return np.concatenate(found)


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", FORMATS)
def test_logits_depend_on_the_tokens_before_them_alone(models: dict[str, Model], kind: str) -> None:
    """One at a time, or in pieces of any size, among guesses, on one thread or two: not a bit differs."""
    model, rng = models[kind], np.random.default_rng(1)
    tokens = rng.integers(4, 500, 150).astype(np.int32)
    alone = rows_of(model, tokens, iter(lambda: 1, 0))
    for threads in (1, 2):
        pieces = (int(rng.integers(1, 49)) for _ in range(1000))
        assert rows_of(model, tokens, pieces, threads=threads).tobytes() == alone.tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["F16", SHIPPED])
def test_so_it_is_behind_a_long_text_whatever_chunks_it_was_read_in(
    models: dict[str, Model], kind: str
) -> None:
    tokens = np.random.default_rng(2).integers(4, 500, LONG).astype(np.int32)
    found = []
    for chunk, rows in ((512, 1), (128, 3), (64, 20), (129, 1)):  # 129: a piece of one token is left over
        with context(models[kind], chunk=chunk) as made:
            made.score([Want(tokens[:-rows])])
            found.append(made.score([Want(tokens, rows=rows)])[0][-1].tobytes())
    assert len(set(found)) == 1


def test_without_it_single_rows_differ(models: dict[str, Model]) -> None:
    """What the mode is for; if this fails, llama.cpp has changed, and the mode may cost nothing."""
    tokens = np.random.default_rng(1).integers(4, 500, 60).astype(np.int32)
    usual = {"identical": False, "flash_attention": False}
    alone = rows_of(models["F16"], tokens, iter(lambda: 1, 0), **usual)
    together = rows_of(models["F16"], tokens, iter(lambda: 20, 0), **usual)
    assert alone.tobytes() != together.tobytes()


def test_a_context_that_breaks_the_promise_is_noticed(models: dict[str, Model]) -> None:
    with context(models["F16"]) as made:
        check_identical(made)
        assert made.held().size == 0
        made._evaluator._companion = None
        with pytest.raises(
            SettingError, match=f"cannot be kept here: F16.gguf .* 1 tokens at once than for {sum(PIECES)}"
        ):
            check_identical(made)


def texts(pair: Pair, asked: Callable[[], list[Request]]) -> list[list[int]]:
    prompt = pair.prompt_tokens('def total(rows):\n    """Adds up."""\n' * 30)
    assert prompt.size > 380
    return [[token for round_ in pair.generate(prompt, one) for token in round_.tokens] for one in asked()]


@pytest.mark.sample(1)
@pytest.mark.parametrize("threads", [1, 2])
def test_greedy_and_seeded_texts_are_those_of_plain_decoding(
    tiny_target: Path, tiny_draft: Path, threads: int
) -> None:
    """With any draft length, behind a prompt that is cached or not."""

    def asked(drafter: str, length: int | None) -> list[Request]:
        how: dict[str, Any] = {"max_tokens": 48, "drafter": drafter, "draft_length": length}
        return [Request(GREEDY, **how), *(Request(SEEDED, seed=seed, **how) for seed in (1, 2))]

    settings = PairSettings(n_ctx=1024, threads=1, byte_identical=True, remember=False)
    with Pair(tiny_target, tiny_draft, settings) as pair:
        plain = texts(pair, lambda: asked("none", None))
    settings = PairSettings(n_ctx=1024, threads=threads, byte_identical=True, remember=False)
    with Pair(tiny_target, tiny_draft, settings) as pair:
        for drafter, length in (("model", 1), ("model", 4), ("model", 16), ("auto", None), ("lookup", 8)):
            assert texts(pair, lambda drafter=drafter, length=length: asked(drafter, length)) == plain


def test_neither_an_earlier_request_nor_a_restored_prompt_changes_a_bit(
    tiny_target: Path, tiny_draft: Path
) -> None:
    settings = PairSettings(n_ctx=512, threads=1, byte_identical=True, remember=False)
    with Pair(tiny_target, tiny_draft, settings) as pair:
        engine = Engine(pair, slots=1, cache_ram=64 << 20)
        prompts = [
            pair.prompt_tokens(text * 12) for text in ("def add(a, b):\n", "class Tree:\n", "import os\n")
        ]
        found: dict[int, set[tuple[int, ...]]] = {0: set(), 1: set(), 2: set()}
        for turn, which in enumerate((0, 1, 0, 2, 0, 1, 2)):
            request = Request(SEEDED, 24, seed=7, drafter="auto" if turn % 2 else "none")
            engine.submit(str(turn), prompts[which], request)
            text: list[int] = []
            while not engine.idle:
                for event in engine.step():
                    if hasattr(event, "round"):
                        text += event.round.tokens
            found[which].add(tuple(text))
    assert all(len(same) == 1 and len(next(iter(same))) > 4 for same in found.values())


@pytest.mark.parametrize(
    ("wrong", "flag"),
    [
        ({"slots": 2}, "--slots 2"),
        ({"kv_type": "q8_0"}, "--kv-type q8_0"),
        ({"flash_attention": True}, "--flash-attention on"),
        ({"n_gpu_layers": 4}, "--gpu-layers 4"),
        ({"rpc": ("127.0.0.1:1",)}, "--rpc"),
    ],
)
def test_what_would_break_it_is_refused(wrong: dict[str, Any], flag: str) -> None:
    with pytest.raises(SettingError, match=f"leave out {flag}$"):
        PairSettings(byte_identical=True, **wrong)


def test_a_recurrent_model_is_refused(tmp_path: Path) -> None:
    path = tiny_gguf.write_hybrid(tmp_path / "hybrid.gguf")
    with pytest.raises(SettingError, match="hybrid.gguf: its recurrent state rounds"):
        Pair(path, None, PairSettings(n_ctx=128, byte_identical=True, remember=False))


def served(*flags: str) -> Any:
    """Returns the defaults of requests of a server started with these flags."""
    parser = argparse.ArgumentParser()
    serve.add_all(parser)
    arguments = parser.parse_args([*flags])
    arguments.slots = arguments.slots or 1
    return serve._defaults(arguments)


def test_a_reproducible_server_reads_prompts_afresh_and_guesses_only_where_that_changes_nothing() -> None:
    """It handed its flag on as the scales of LoRA adapters, and reused prompts in any pieces."""
    assert not served().fresh and served().drafter == "auto"
    assert served("--reproducible").fresh and served("--reproducible").drafter == "none"
    for flags in (["--byte-identical"], ["--byte-identical", "--reproducible"]):
        assert not served(*flags).fresh and served(*flags).drafter == "auto"
    assert all(served(*flags).adapters == () for flags in ([], ["--reproducible"]))
