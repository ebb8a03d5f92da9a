"""Medusa heads guess from the row that they were made for, and change no text."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import test_heads
import tiny_gguf
import tiny_heads
import tiny_medusa
from fakes import fits
from test_heads import FORMED, GREEDY, SEEDED, answers, prompt, run

from edgespec.commands.verify.budget import Deadline, TokenizedPrompt
from edgespec.commands.verify.samples import NARROW, telling_prompt
from edgespec.commands.verify.texts import Way
from edgespec.core.loop import Want
from edgespec.core.request import Request
from edgespec.core.verify import Independent
from edgespec.engine.engine import Engine
from edgespec.engine.pair import Pair
from edgespec.errors import ModelFileError, ModelUnsupportedError, PairMismatchError, SettingError
from edgespec.llama.heads.hidden_rows import HiddenRows
from edgespec.llama.heads.medusa_context import MedusaContext
from edgespec.pairs.settings import PairSettings
from edgespec.sampling.sampler import Sampler, Sampling

QUIET = PairSettings(remember=False)
Files = tuple[Path, Path]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("medusa")
    target = tiny_heads.write_mtp(folder / "target.gguf", depth=0.3)
    return target, tiny_medusa.write_fitted(target, folder / "heads.gguf", [prompt(n) for n in range(8)])


def written(pair: Pair, request: Request) -> list[int]:
    return [token for round_ in pair.generate(prompt(50), request) for token in round_.tokens]


@pytest.mark.parametrize("request_", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_text_with_medusa_is_text_without(files: Files, request_: Request) -> None:
    with Pair(*files, QUIET) as pair:
        wanted = written(pair, replace(request_, drafter="none"))
        assert written(pair, request_) == wanted
        for length in (1, 3, 8):
            pair.forget()
            rounds = list(pair.generate(prompt(50), replace(request_, drafter="medusa", draft_length=length)))
            assert [token for round_ in rounds for token in round_.tokens] == wanted
            assert max(r.drafted for r in rounds) == min(length, tiny_medusa.HEADS)
            assert rounds[0].drafted == rounds[1].drafted == 0, "no row is known of a prompt"
            assert all(r.drafted for r in rounds[2:-1])


def test_medusa_guesses_under_a_grammar(files: Files) -> None:
    with Pair(*files, QUIET) as pair:
        request = replace(SEEDED, grammar=FORMED, max_tokens=40)
        wanted = written(pair, replace(request, drafter="none"))
        assert written(pair, replace(request, drafter="medusa", draft_length=3)) == wanted


def third_token_fits(files: Files, n: int = 400) -> bool:
    """Compares third tokens, the first that may be guessed, with what the target says of all ways there."""
    others = dict.fromkeys(set(range(tiny_medusa.N_VOCAB)) - {29, 61, 175, 361, 276, 241}, -np.inf)
    sampling = Sampling(temperature=2.0, top_k=0, top_p=1.0, min_p=0.0, logit_bias=others)
    with Pair(*files, QUIET) as pair:
        sampler, context = Sampler(sampling, pair.target.n_vocab), pair.contexts["target"]

        def after(tokens: test_heads.Tokens, left: int) -> Iterator[tuple[int, float]]:
            law = sampler(context.score([Want(tokens)])[0][0].copy(), tokens)
            for token, p in zip(law.ids.tolist(), law.probs.tolist(), strict=True):
                deeper = after(np.append(tokens, np.int32(token)), left - 1) if left else [(token, 1.0)]
                yield from ((last, p * q) for last, q in deeper)

        expected: Counter[int] = Counter()
        for token, p in after(prompt(50), 2):
            expected[token] += p  # type: ignore[assignment]
        counts: Counter[int] = Counter()
        drafted = 0
        for seed in range(n):
            how = Request(sampling, max_tokens=4, rng_seed=seed, drafter="medusa", draft_length=1)
            rounds = list(pair.generate(prompt(50), how))
            drafted += sum(round_.drafted for round_ in rounds)
            counts[[token for round_ in rounds for token in round_.tokens][2]] += 1
    assert drafted >= n
    return fits(counts, expected)


@pytest.mark.slow
def test_drawn_text_has_the_distribution_of_the_target(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """One false alarm in a million; guesses that were not drawn from what they are said to be are seen."""
    assert third_token_fits(files)
    monkeypatch.setattr(Independent, "draw", lambda self, q, position: q.likeliest()[0])
    assert not third_token_fits(files)


def accepted(files: Files) -> float:
    with Pair(*files, QUIET) as pair:
        how = replace(GREEDY, drafter="medusa", draft_length=tiny_medusa.HEADS, max_tokens=60)
        rounds = [r for seed in range(40, 44) for r in pair.generate(prompt(seed), how)]
    return sum(r.accepted for r in rounds) / sum(r.drafted for r in rounds)


def test_heads_guess_from_the_row_that_they_were_fitted_to(files: Files, monkeypatch: Any) -> None:
    right = accepted(files)
    assert right > 0.4
    row, reads = HiddenRows.row, MedusaContext._reads
    with monkeypatch.context() as broken:
        broken.setattr(HiddenRows, "row", lambda self, seq, position: row(self, seq, position - 1))
        assert accepted(files) < right / 2

    def another_head(self: MedusaContext, want: Want) -> Any:
        place, state = reads(self, want)
        return (place + 1) % tiny_medusa.HEADS, state

    monkeypatch.setattr(MedusaContext, "_reads", another_head)
    assert accepted(files) < right / 2


def test_verify_finds_a_prompt_for_them(files: Files) -> None:
    """It asked for a guess where they have none, and took the rows for those of damaged weights."""
    with Pair(*files, QUIET) as pair:
        prompts = [TokenizedPrompt("code", prompt(n)) for n in (1, 2)]
        found = telling_prompt(pair, prompts, Way("model", 2), NARROW, Deadline(time.perf_counter))
        assert found in prompts


@pytest.mark.parametrize("slots", [1, 4])
def test_slots_share_heads_and_say_what_each_would_say_alone(files: Files, slots: int) -> None:
    texts = [prompt(seed, 10 + 9 * seed) for seed in range(6)]
    how: dict[str, Any] = {"drafter": "medusa", "draft_length": 3, "max_tokens": 24}
    requests = [replace(SEEDED if i % 2 else GREEDY, **how) for i in range(6)]
    plain = [replace(request, drafter="none") for request in requests]
    assert answers(files, slots, requests, texts) == answers(files, 1, plain, texts)


def test_a_text_that_comes_back_out_of_host_memory_goes_on_as_before(files: Files) -> None:
    how = replace(GREEDY, drafter="medusa", draft_length=2, max_tokens=6)
    first, other = prompt(1, 120), prompt(2, 120)
    with Pair(*files, PairSettings(remember=False, slots=1, n_ctx=200)) as pair:
        engine = Engine(pair, slots=1, cache_ram=2**24)
        wanted = run(engine, first, how)
        run(engine, other, how)
        assert run(engine, first, how) == wanted


@pytest.mark.parametrize("write", [test_heads.hybrid, tiny_gguf.write_llama])
def test_they_guess_for_any_architecture(tmp_path: Path, write: Callable[..., Any]) -> None:
    """Also of some of the tokens alone; with rows of a recurrent target, which goes back otherwise."""
    target = write(tmp_path / "llama.gguf" if write is tiny_gguf.write_llama else tmp_path)
    target = target[0] if isinstance(target, tuple) else target
    heads = tiny_medusa.write_medusa(tmp_path / "heads.gguf", d2t=range(100, 400))
    with Pair(target, heads, QUIET) as pair:
        wanted = written(pair, replace(SEEDED, drafter="none"))
        how = replace(SEEDED, drafter="medusa", draft_length=3)
        rounds = list(pair.generate(prompt(50), how))
        assert [token for round_ in rounds for token in round_.tokens] == wanted
        assert sum(r.drafted for r in rounds) > 50


# ---- what is no head, or not for this target --------------------------------------------------------------


def test_heads_of_another_target_and_damaged_ones_are_refused(files: Files, tmp_path: Path) -> None:
    target, heads = files

    def refused(why: str, **how: Any) -> None:
        with pytest.raises(PairMismatchError, match=why):
            Pair(target, tiny_medusa.write_medusa(tmp_path / "odd.gguf", **how), QUIET)

    refused("hidden states of 32 numbers, and the target's have 64", d=32)
    refused("700", n_vocab=700)
    refused("it has 99 Medusa heads, and 1 to 16 can be run", metadata={"medusa.head_count": 99})
    refused("its tensor head.1.bias is not 64 floats of 32 bits", tensors={"head.1.bias": None})
    wide = np.zeros((512, 32), np.float32)
    refused("its tensor output.weight is not 64 x 512 floats of 32 bits", tensors={"output.weight": wide})
    refused("names token 512 of 512", d2t=[1, 512])
    whole = heads.read_bytes()
    (tmp_path / "short.gguf").write_bytes(whole[:-400])
    with pytest.raises(ModelFileError, match="short.gguf"):
        Pair(target, tmp_path / "short.gguf", QUIET)
    with (
        Pair(target, settings=QUIET) as pair,
        pytest.raises(SettingError, match="was loaded without a Medusa head: name its file with --draft"),
    ):
        written(pair, replace(GREEDY, drafter="medusa"))
    with pytest.raises(ModelUnsupportedError, match="a Medusa head alone, which generates no text"):
        Pair(heads)
