"""Medusa heads: converted from published ones, they guess from the right state, and no text changes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_gguf
import tiny_heads
from numpy.typing import NDArray
from test_heads import FORMED, answers, prompt, run

from edgespec.core.loop import Want
from edgespec.core.request import Request
from edgespec.engine.engine import Engine
from edgespec.engine.pair import Pair
from edgespec.errors import ModelFileError, ModelUnsupportedError, PairMismatchError, SettingError
from edgespec.llama.context import Context, ContextSettings
from edgespec.llama.heads.hidden_rows import HiddenRows
from edgespec.llama.heads.medusa_context import MedusaContext
from edgespec.llama.heads.taps import tap_outputs
from edgespec.llama.model import Model
from edgespec.pairs.settings import PairSettings
from edgespec.sampling.sampler import Sampling
from edgespec_models.gguf import medusa

GREEDY, SEEDED = Request(Sampling(temperature=0), max_tokens=50), Request(seed=7, max_tokens=50)
QUIET = PairSettings(remember=False)
D, N_VOCAB, N_HEADS = tiny_heads.D, 512, 3
Tensors = Mapping[str, NDArray[Any]]


def write_safetensors(path: Path, tensors: Tensors, *, bf16: bool = False) -> Path:
    described: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, tensor in tensors.items():
        raw = (tensor.view(np.uint32) >> 16).astype("<u2").tobytes() if bf16 else tensor.tobytes()
        offsets = [len(data), len(data) + len(raw)]
        kind = "BF16" if bf16 else "F32"
        described[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": offsets}
        data += raw
    header = json.dumps(described).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)
    return path


def states_of(context: Context, rows: HiddenRows, tokens: NDArray[np.int32]) -> NDArray[np.float32]:
    """Returns what the output matrix reads behind each token."""
    context.clear()
    context.score([Want(tokens, (), tokens.size)])
    return rows.between(0, 0, tokens.size)


def learned(target: Path) -> dict[str, NDArray[np.float32]]:
    """Fits heads to what the target says: a residual block that adds nothing yet, and a matrix."""
    texts = []
    with Pair(target, settings=PairSettings(remember=False, head=False)) as pair:
        for seed in range(8):
            rounds = pair.generate(prompt(seed), replace(GREEDY, max_tokens=100, drafter="none"))
            said = [token for round_ in rounds for token in round_.tokens]
            texts.append(np.append(prompt(seed), np.array(said, np.int32)))
    with Model(target) as model, Context(model, ContextSettings(n_ctx=256, n_rows=200)) as context:
        tap, switch = tap_outputs(context.handle, D)
        rows = context.keep_hidden(tap, D, switch=switch)
        states = [states_of(context, rows, text) for text in texts]
    found: dict[str, NDArray[np.float32]] = {}
    for i in range(N_HEADS):
        x = np.concatenate([of[: -2 - i] for of in states])
        y = np.eye(N_VOCAB, dtype=np.float32)[np.concatenate([text[2 + i :] for text in texts])]
        weights = 20 * np.linalg.solve(x.T @ x + 1e-2 * np.eye(D), x.T @ y).T
        found[f"{i}.0.linear.weight"] = np.zeros((D, D), np.float32)
        found[f"{i}.0.linear.bias"] = np.zeros(D, np.float32)
        found[f"{i}.1.weight"] = np.ascontiguousarray(weights, np.float32)
    return found


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("medusa")
    target = tiny_heads.write_mtp(folder / "target.gguf", depth=0.3)
    return target, write_safetensors(folder / "medusa_lm_head.safetensors", learned(target))


@pytest.fixture(scope="module")
def files(published: tuple[Path, Path]) -> tuple[Path, Path]:
    target, source = published
    converted = source.with_name("medusa.gguf")
    assert medusa.main([str(source), str(converted), "--target", str(target)]) == 0
    return target, converted


def said(pair: Pair, request: Request) -> list[int]:
    return [token for round_ in pair.generate(prompt(50), request) for token in round_.tokens]


@pytest.mark.parametrize("request_", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_text_with_medusa_is_text_without(files: tuple[Path, Path], request_: Request) -> None:
    with Pair(*files, QUIET) as pair:
        wanted = said(pair, replace(request_, drafter="none"))
        assert said(pair, request_) == wanted
        for length in (1, 3, 8):
            pair.forget()
            rounds = list(pair.generate(prompt(50), replace(request_, drafter="medusa", draft_length=length)))
            assert [token for round_ in rounds for token in round_.tokens] == wanted
            assert 0 < max(r.drafted for r in rounds) <= min(length, N_HEADS)
            assert rounds[0].drafted == rounds[1].drafted == 0, "behind a prompt no state is known"
            assert all(r.drafted for r in rounds[2:-1])


def test_medusa_guesses_under_a_grammar(files: tuple[Path, Path]) -> None:
    with Pair(*files, QUIET) as pair:
        request = replace(SEEDED, grammar=FORMED, max_tokens=40)
        wanted = said(pair, replace(request, drafter="none"))
        assert said(pair, replace(request, drafter="medusa", draft_length=3)) == wanted


def accepted(files: tuple[Path, Path]) -> float:
    with Pair(*files, QUIET) as pair:
        how = replace(GREEDY, drafter="medusa", draft_length=N_HEADS, max_tokens=60)
        rounds = [r for seed in range(40, 44) for r in pair.generate(prompt(seed), how)]
    return sum(r.accepted for r in rounds) / max(1, sum(r.drafted for r in rounds))


def test_heads_that_learned_guess_from_the_state_that_they_learned_from(
    files: tuple[Path, Path], monkeypatch: Any
) -> None:
    right = accepted(files)
    assert right > 0.4
    row, stands = HiddenRows.row, MedusaContext._stands
    with monkeypatch.context() as broken:
        broken.setattr(HiddenRows, "row", lambda self, seq, position: row(self, seq, position - 1))
        assert accepted(files) < right / 2

    def another_head(self: MedusaContext, want: Want) -> Any:
        place, state = stands(self, want)
        return (place + 1) % N_HEADS, state

    monkeypatch.setattr(MedusaContext, "_stands", another_head)
    assert accepted(files) < right / 2


@pytest.mark.parametrize("slots", [1, 4])
def test_slots_share_heads_and_say_what_each_would_say_alone(files: tuple[Path, Path], slots: int) -> None:
    texts = [prompt(seed, 10 + 9 * seed) for seed in range(6)]
    how: dict[str, Any] = {"drafter": "medusa", "draft_length": 3, "max_tokens": 24}
    requests = [replace(SEEDED if i % 2 else GREEDY, **how) for i in range(6)]
    plain = [replace(request, drafter="none") for request in requests]
    assert answers(files, slots, requests, texts) == answers(files, 1, plain, texts)


def test_a_text_that_comes_back_out_of_host_memory_goes_on_as_before(files: tuple[Path, Path]) -> None:
    how = replace(GREEDY, drafter="medusa", draft_length=2, max_tokens=6)
    first, other = prompt(1, 120), prompt(2, 120)
    with Pair(*files, PairSettings(remember=False, slots=1, n_ctx=200)) as pair:
        engine = Engine(pair, slots=1, cache_ram=2**24)
        wanted = run(engine, first, how)
        run(engine, other, how)
        assert run(engine, first, how) == wanted


def test_a_trimmed_head_guesses_the_tokens_that_it_knows(
    published: tuple[Path, Path], tmp_path: Path
) -> None:
    target, source = published
    small = tmp_path / "small.gguf"
    assert medusa.main([str(source), str(small), "--target", str(target), "--tokens", "300"]) == 0
    heads, tokens = medusa.load(small)
    assert tokens is not None
    assert tokens.size == heads[0].output.shape[0] < 320
    with Pair(target, small, QUIET) as pair:
        wanted = said(pair, replace(SEEDED, drafter="none"))
        assert said(pair, replace(SEEDED, drafter="medusa", draft_length=3)) == wanted


def test_weights_are_read_as_they_were_published(tmp_path: Path) -> None:
    header = medusa.read_file(tiny_gguf.write_llama(tmp_path / "t.gguf"))
    rng = np.random.default_rng(0)
    shapes = {"0.0.linear.weight": (64, 64), "0.0.linear.bias": (64,), "0.1.weight": (512, 64)}
    tensors = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    for name, bf16, close in (("a", False, 2e-3), ("b", True, 2e-2)):
        source = write_safetensors(tmp_path / f"{name}.safetensors", tensors, bf16=bf16)
        medusa.convert(source, tmp_path / f"{name}.gguf", header)
        (head,), every = medusa.load(tmp_path / f"{name}.gguf")
        assert every is None
        found = (head.output, *head.blocks[0])
        for one, other in zip(found, ("0.1.weight", "0.0.linear.weight", "0.0.linear.bias"), strict=True):
            np.testing.assert_allclose(one, tensors[other], close, close)


# ---- what is no head, or not for this target --------------------------------------------------------------


def test_what_holds_no_heads_for_a_target_is_refused_in_a_sentence(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target, head = files

    def refused(source: Path) -> str:
        assert medusa.main([str(source), str(tmp_path / "x.gguf"), "--target", str(target)]) == 1
        return capsys.readouterr().err

    def sized(d: int, rows: int) -> dict[str, NDArray[np.float32]]:
        shapes = {"0.0.linear.weight": (d, d), "0.0.linear.bias": (d,), "0.1.weight": (rows, d)}
        return {name: np.ones(shape, np.float32) for name, shape in shapes.items()}

    source = tmp_path / "m.safetensors"
    for tensors, why in (
        (sized(32, 512), "hidden states of 32 numbers, and"),
        (sized(64, 900), "a target of 900 tokens"),
        ({"model.weight": np.ones(4, np.float32)}, "holds no Medusa heads"),
        ({"0.1.weight": np.ones(4, np.float32)}, "holds heads for a target of 4 tokens"),
    ):
        assert why in refused(write_safetensors(source, tensors))
    whole = source.read_bytes()
    for damaged in (b"", whole[:5], whole[:40], whole[:-9], b"\xff" * 60):
        source.write_bytes(damaged)
        assert "is no safetensors file, or is cut short" in refused(source)
    assert not (tmp_path / "x.gguf").exists()
    with pytest.raises(ModelFileError, match="`python -m edgespec_models.gguf.medusa` converts it"):
        Pair(target, source)
    with (
        Pair(target, settings=QUIET) as pair,
        pytest.raises(SettingError, match="was loaded without a Medusa head: name its file with --draft"),
    ):
        said(pair, replace(GREEDY, drafter="medusa"))
    with pytest.raises(ModelUnsupportedError, match="a Medusa head alone, which generates no text"):
        Pair(head)


def test_heads_of_another_target_and_damaged_ones_are_refused(
    files: tuple[Path, Path], tmp_path: Path
) -> None:
    target, head = files
    other = tiny_gguf.write_llama(tmp_path / "other.gguf", n_vocab=700)
    with pytest.raises(PairMismatchError, match="it is made for 512 tokens, and the target has 700"):
        Pair(other, head)
    narrow = tiny_gguf.write_llama(tmp_path / "narrow.gguf", d=32)
    with pytest.raises(PairMismatchError, match="hidden states of 64 numbers, and the target's have 32"):
        Pair(narrow, head)
    whole = head.read_bytes()
    for n in (100, len(whole) // 2, len(whole) - 400):
        (tmp_path / "short.gguf").write_bytes(whole[:n])
        with pytest.raises(ModelFileError, match="short.gguf"):
            Pair(target, tmp_path / "short.gguf")
    (tmp_path / "odd.gguf").write_bytes(whole.replace(b"head.1.output.weight", b"head.7.output.weight"))
    with pytest.raises(PairMismatchError, match="its tensor head.1.output.weight is of shape None"):
        Pair(target, tmp_path / "odd.gguf")
