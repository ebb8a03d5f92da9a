"""LoRA adapters: the target computes what the merged model does, and no text takes what others read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader, GGUFWriter
from served import served
from tiny_gguf import CONTROL, write_llama

from edgespec.core.loop import Want
from edgespec.core.request import Request, Scoring
from edgespec.core.values import Emitted, Failed, Round, Started
from edgespec.engine.engine import Engine
from edgespec.engine.pair import Pair
from edgespec.errors import ModelFileError, PairMismatchError, SettingError
from edgespec.llama.context import Context, ContextSettings
from edgespec.llama.model import Model
from edgespec.pairs.adapters import Adapter, parse_adapters
from edgespec.pairs.settings import PairSettings
from edgespec.sampling.sampler import Sampling

ADAPTED = ("attn_q", "attn_v", "ffn_up", "ffn_down")
RANK, ALPHA = 4, 8.0
NO_END = {token: -1e9 for token in range(512 - len(CONTROL), 512)}
PROMPT = np.arange(20, dtype=np.int32)
Delta = dict[str, np.ndarray]


def write_adapter(path: Path, target: Path, seed: int, architecture: str = "llama") -> Delta:
    """Writes an adapter as llama.cpp's converter does; returns what it adds to each weight at scale 1."""
    rng, writer = np.random.default_rng(seed), GGUFWriter(path, architecture)
    writer.add_string("general.type", "adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", ALPHA)
    delta = {}
    for tensor in GGUFReader(target).tensors:
        if tensor.name.split(".")[-2] in ADAPTED:
            rows, columns = tensor.data.shape
            a = rng.normal(0, 0.15, (RANK, columns)).astype(np.float32)
            b = rng.normal(0, 0.15, (rows, RANK)).astype(np.float32)
            writer.add_tensor(f"{tensor.name}.lora_a", a)
            writer.add_tensor(f"{tensor.name}.lora_b", b)
            delta[tensor.name] = b @ a * ALPHA / RANK
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return delta


class Files:
    """A target, its draft, two adapters, and what these add."""

    def __init__(self, folder: Path) -> None:
        self.target, self.draft = write_llama(folder / "t.gguf"), write_llama(folder / "d.gguf", layers=1)
        self.adapters = folder / "one.gguf", folder / "two.gguf"
        self.deltas = [write_adapter(path, self.target, i + 1) for i, path in enumerate(self.adapters)]
        self.folder = folder

    def settings(self, *scales: float, slots: int = 1) -> PairSettings:
        adapters = tuple(Adapter(str(p), s) for p, s in zip(self.adapters, scales, strict=False))
        return PairSettings(n_ctx=256, threads=1, remember=False, slots=slots, adapters=adapters)

    def merged(self, *scales: float) -> Path:
        weights = {tensor.name: np.array(tensor.data) for tensor in GGUFReader(self.target).tensors}
        for scale, delta in zip(scales, self.deltas, strict=False):
            for name, added in delta.items():
                weights[name] = weights[name] + np.float32(scale) * added
        return write_llama(self.folder / "merged.gguf", tensors=weights)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("adapters"))


def rows(path: Path, adapters: Sequence[Adapter] = ()) -> np.ndarray:
    with Model(path) as model:
        model.add_adapters(adapters)
        with Context(model, ContextSettings(n_ctx=64, n_rows=8, threads=1)) as context:
            context.adapt(tuple(one.scale for one in adapters))
            return np.array([np.array(row) for row in context.score([Want(PROMPT, (1, 2, 3), 4)])[0]])


def request(drafter: str = "none", *, adapters: tuple[float, ...] | None = None, seed: int = 3) -> Request:
    sampling = Sampling(temperature=0.8, logit_bias=NO_END)
    return Request(sampling, 32, seed=seed, drafter=drafter, adapters=adapters)  # type: ignore[arg-type]


def text(pair: Pair, wanted: Request, prompt: np.ndarray = PROMPT) -> list[int]:
    return [token for round_ in pair.generate(prompt, wanted) for token in round_.tokens]


def generated_by(rounds: Iterable[Round]) -> list[tuple[int, float]]:
    """Returns the tokens with the logarithms of their probabilities."""
    return [
        (token, score.chosen.logprob)
        for round_ in rounds
        for token, score in zip(round_.tokens, round_.scores, strict=True)
    ]


@pytest.mark.parametrize("scales", [(1.0,), (0.5,), (1.0, -0.7), (0.0, 1.0)])
def test_the_target_computes_what_the_merged_model_computes(files: Files, scales: tuple[float, ...]) -> None:
    ours = rows(files.target, files.settings(*scales).adapters)
    np.testing.assert_allclose(ours, rows(files.merged(*scales)), rtol=1e-3, atol=1e-3)
    assert np.abs(ours - rows(files.target)).max() > 0.1, "and that is something else"


def test_a_draft_does_not_change_the_text_and_is_not_adapted(files: Files) -> None:
    with Pair(files.target, files.draft, files.settings(1.0)) as pair:
        plain, drafted = text(pair, request()), text(pair, request("model"))
        assert plain == drafted
    with Pair(files.merged(1.0), None, files.settings()) as pair:
        assert text(pair, request()) == plain


def test_a_request_names_scales_and_nothing_is_reused_from_others(files: Files) -> None:
    with Pair(files.target, files.draft, files.settings(1.0, 0.0)) as pair:
        own, other = text(pair, request()), text(pair, request("model", adapters=(0.0, 1.0)))
        assert own != other and text(pair, request()) == own
        assert text(pair, request(adapters=(0.0, 1.0))) == other
        with pytest.raises(SettingError, match="there are 1 scales of adapters: the pair was loaded with 2"):
            text(pair, request(adapters=(1.0,)))


@pytest.mark.parametrize("drafter", ["none", "model"])
def test_streams_with_other_adapters_take_turns_each_as_if_alone(files: Files, drafter: str) -> None:
    """The same prompt with three sets at once, twice: slots, shared beginnings and host memory keep apart.

    Other cells of the cache add up in another order: these random logits then differ in the third digit.
    """
    sets: list[tuple[float, ...] | None] = [None, (0.0, 1.0), (0.0, 0.0)] * 2
    prompt, ids = np.arange(100, dtype=np.int32), [str(i) for i in range(2 * len(sets))]

    def wanted(i: int) -> Request:
        return replace(request(drafter, adapters=sets[i % len(sets)]), scoring=Scoring())

    with Pair(files.target, files.draft, files.settings(1.0, 0.0, slots=3)) as pair:
        alone = [generated_by(round_ for round_ in pair.generate(prompt, wanted(i))) for i in range(3)]
        assert len({one[0] for one in alone}) == 3
        pair.forget()
        pair.adapt((1.0, 0.0))
        engine, cached = Engine(pair, slots=3, cache_ram=2**24), {}
        rounds: dict[str, list[Round]] = {id: [] for id in ids}
        for i, id in enumerate(ids):
            engine.submit(id, prompt, wanted(i))
        while not engine.idle:
            for event in engine.step():
                assert not isinstance(event, Failed), event
                if isinstance(event, Emitted):
                    rounds[event.id].append(event.round)
                elif isinstance(event, Started):
                    cached[event.id] = event.cached_tokens
            engine.tidy()
            if engine.idle:
                foreign = [slot for slot in range(3) if engine._slots[slot].adapters != (1.0, 0.0)]
                for slot in foreign:
                    with pytest.raises(SettingError, match="was read with other LoRA scales"):
                        engine.slot_state(slot)
                assert foreign
    for i, id in enumerate(ids):
        ours, theirs = generated_by(rounds[id]), alone[i % 3]
        same = next((n for n, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a[0] != b[0]), 32)
        assert same >= 8
        assert all(abs(a[1] - b[1]) < 0.05 for a, b in zip(ours[:same], theirs[:same], strict=True))
    assert sum(n > 0 for n in cached.values()) >= 6, "what was read with the same adapters is reused"


def test_what_is_no_adapter_for_the_target_is_refused_before_anything_is_loaded(
    files: Files, tmp_path: Path
) -> None:
    def refused(*adapters: str) -> str:
        with pytest.raises((ModelFileError, PairMismatchError)) as caught:
            Pair(files.target, None, replace(files.settings(), adapters=parse_adapters(adapters)))
        return str(caught.value)

    assert "t.gguf is no LoRA adapter" in refused(str(files.target))
    assert "there is no file" in refused(str(tmp_path / "none.gguf"))
    write_adapter(tmp_path / "a.gguf", files.target, 1, architecture="qwen3")
    assert "a.gguf was made for a model of architecture qwen3, and " in refused(str(tmp_path / "a.gguf"))
    wide = write_llama(tmp_path / "wide.gguf", d=128, head_dim=32)
    write_adapter(tmp_path / "w.gguf", wide, 1)
    assert "w.gguf was made for another model than " in refused(f"{tmp_path / 'w.gguf'}:0.5")
    damaged = tmp_path / "cut.gguf"
    damaged.write_bytes(files.adapters[0].read_bytes()[:-5000])
    assert "cut.gguf" in refused(str(damaged))


def test_a_flag_names_a_file_and_a_scale() -> None:
    assert parse_adapters(["a.gguf", "b.gguf:0.5", "C:\\x.gguf"]) == (
        Adapter("a.gguf"), Adapter("b.gguf", 0.5), Adapter("C:\\x.gguf")
    )  # fmt: skip
    for wrong in ("a.gguf:nan", "a.gguf:1e9"):
        with pytest.raises(SettingError, match="an adapter's scale is"):
            parse_adapters([wrong])


def test_the_endpoint_lists_adapters_sets_their_scales_and_takes_those_of_a_request(
    files: Files, tmp_path: Path
) -> None:
    one, two = files.adapters
    flags = ("--target", str(files.target), "--no-draft", "--ctx", "256", "--threads", "1")
    with served(tmp_path, *flags, "--lora", str(one), "--lora", f"{two}:0") as server:

        def generated_by(**more: object) -> str:
            body = {"prompt": "abc", "n_predict": 24, "temperature": 0, "ignore_eos": True, **more}
            answer = server.ask("/completion", body)
            assert answer.status == 200, answer.error
            return str(answer.json["content"])

        listed = server.ask("/lora-adapters").json
        assert [(a["id"], a["path"], a["scale"]) for a in listed] == [
            (0, "one.gguf", 1.0),
            (1, "two.gguf", 0.0),
        ]
        first, second = generated_by(), generated_by(lora=[{"id": 1, "scale": 1}])
        assert first != second and generated_by(lora=[{"id": 0, "scale": 1}]) == first
        assert server.ask("/lora-adapters", [{"id": 1, "scale": 1.0}]).json == {"success": True}
        assert generated_by() == second and [a["scale"] for a in server.ask("/lora-adapters").json] == [
            0.0,
            1.0,
        ]
        wrong = server.ask("/lora-adapters", [{"id": 7, "scale": 1.0}])
        assert wrong.status == 400 and "there is no LoRA adapter 7: the model was loaded with 2" in str(
            wrong.error
        )
        assert server.ask("/completion", {"prompt": "a", "lora": [{"id": 0, "scale": "x"}]}).status == 400
