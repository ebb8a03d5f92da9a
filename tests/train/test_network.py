"""The network and its file: what torch computes, llama.cpp computes. Skipped where torch is absent."""

import ctypes
import random
from dataclasses import replace

import gguf
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the recipes train with torch; install the extra `train`")
pytest.importorskip("tokenizers", reason="the recipes need tokenizers; install the extra `train`")
pytest.importorskip("llama_cpp", reason="exported files are checked with llama.cpp")

import proof  # noqa: E402

from edgespec_train import shards  # noqa: E402
from edgespec_train.hidden import Hidden  # noqa: E402
from edgespec_train.model_file import About, interleave  # noqa: E402
from edgespec_train.network import Llama, Shape  # noqa: E402
from edgespec_train.recipes import marks, model, rounding  # noqa: E402
from edgespec_train.recipes.export import export  # noqa: E402
from edgespec_train.recipes.tokenizer import read_tokenizer, token_id, train_tokenizer  # noqa: E402
from edgespec_train.recipes.train import accumulate  # noqa: E402
from edgespec_train.recorded import PromptToRecord  # noqa: E402
from edgespec_train.recording import best_of  # noqa: E402
from edgespec_train.start import read_llama  # noqa: E402
from edgespec_train.target_file import open_target  # noqa: E402
from edgespec_train.train import Plan  # noqa: E402

SMALL = Shape(width=64, layers=2, heads=2, kv_heads=1, head_dim=32, ffn=96, vocab=512, context=512)


@pytest.fixture(scope="module")
def tokenizer(small_library):
    return train_tokenizer([f.text for f in small_library.files], vocab=SMALL.vocab)


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    model = Llama(SMALL)
    for weight in model.parameters():
        if weight.ndim == 2:
            torch.nn.init.normal_(weight, std=0.2)
    return model


@pytest.fixture(scope="module")
def file(network, tokenizer, tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / "small.gguf"
    export(network, tokenizer, path, "Q8_0", About("small", "small", "small", "0"))
    return path


def test_tokens_are_cut_as_in_training(file, tokenizer, small_library):
    rng = random.Random(0)
    texts = [f.text[:20_000] for f in small_library.files] + list(proof.awkward(rng, 300))
    texts += [f"{marks.TURN_START}user\nhi{marks.TURN_END}\n<think>x</think>{marks.FIM_PREFIX}a"]
    assert proof.compare_tokens(file, tokenizer, texts)[2] == 0


def test_logits_are_those_of_torch(network, tokenizer):
    error, same = proof.compare_logits(network, tokenizer, "def f(x):\n    return x + 1\n" * 8)
    assert error < 1e-2 and same > 0.99


def test_control_tokens_have_their_roles(file, tokenizer):
    import llama_cpp as api

    with Hidden(file, None, context=64) as native:
        assert api.llama_vocab_eos(native.vocab) == token_id(tokenizer, marks.TURN_END)
        assert api.llama_vocab_fim_mid(native.vocab) == token_id(tokenizer, marks.FIM_MIDDLE)
        assert not api.llama_vocab_get_add_bos(native.vocab)
        for text in (marks.TURN_END, marks.END_OF_TEXT):
            assert api.llama_vocab_is_eog(native.vocab, token_id(tokenizer, text))
        call = token_id(tokenizer, "<tool_call>")
        ids, room = (
            (api.llama_token * 2)(call, token_id(tokenizer, marks.TURN_END)),
            ctypes.create_string_buffer(64),
        )
        count = api.llama_detokenize(native.vocab, ids, 2, room, len(room), False, False)
        assert room.raw[:count] == b"<tool_call>"
        assert native.tokenise("<tool_call>", special=False) == [call]
        assert len(native.tokenise(marks.TURN_END, special=False)) > 1


def test_interleaved_rows_pair_the_halves():
    weight = np.arange(8, dtype=np.float32)[:, None]
    assert interleave(weight, 2, 4)[:, 0].tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


@pytest.mark.parametrize("layers", [2, 3, 4])
def test_a_grown_network_computes_the_same(network, layers):
    ids = torch.arange(40)[None]
    with torch.inference_mode():
        assert torch.equal(model.grow(network, layers)(ids), network(ids))


def test_gradients_in_parts_are_those_of_the_whole(network):
    batch = torch.randint(0, SMALL.vocab, (4, 33))
    grads = []
    for micro in (32, 1024):
        network.zero_grad()
        accumulate(network, batch, micro)
        grads.append(network.embed.weight.grad.clone())
    network.zero_grad()
    assert (grads[0] - grads[1]).abs().max() < 1e-2 * grads[1].abs().max()


def test_the_rate_rises_stays_and_falls():
    plan = Plan(tokens=1000, anneal=500, warmup=100)
    assert plan.factor(0) < 0.05 and plan.factor(300) == 1.0
    assert plan.factor(750) == pytest.approx(0.5) and plan.factor(1000) == 0.0


def test_a_file_comes_back_into_torch(network, tokenizer, file, small_library):
    """Q8_0 rounds weights to 1/127 of the greatest of 32; beyond that nothing may change."""
    read = read_llama(open_target(file))
    assert replace(read.shape, eps=SMALL.eps) == SMALL and read.shape.eps == pytest.approx(SMALL.eps)
    for ours, theirs in zip(network.parameters(), read.parameters(), strict=True):
        assert (ours - theirs).abs().max() <= ours.abs().max() / 127
    text = "".join(f.text[:5000] for f in small_library.files) + marks.TURN_END + "<think>é\t"
    assert read_tokenizer(file).encode(text).ids == tokenizer.encode(text).ids


def test_a_text_is_read_inside_its_prompt_too(file, network):
    """Rows at every position but the first, as a fresh reading shows them."""
    from edgespec_train.recipes.stages import everywhere

    asked = [PromptToRecord(list(range(40 + i, 45 + 2 * i)), 0.0, 6) for i in range(5)]
    with Hidden(file, None, context=64, sequences=shards.WIDTH + 1) as target:
        texts = list(everywhere(target, asked, {7}, 0))
        assert len(texts) == 5
        for text in texts:
            target.forget()
            ids, p = best_of(target.logits(text.ids[:-1].astype(int).tolist()))
            assert text.prompt == 1 and len(text.top_ids) == len(text.ids) - 1
            np.testing.assert_allclose(text.top_p, p, atol=0.02)
            assert (text.top_ids[:, 0] == ids[:, 0]).mean() > 0.8


def test_training_goes_on_from_files_that_ship(
    network, tokenizer, file, small_library, tmp_path, monkeypatch
):
    """All of it, small: the target is left as it is, and how to measure the draft is said."""
    import shutil

    from edgespec_train.recipes import corpus, prompts, stages, target_prompts

    shipped = tmp_path / "shipped"
    shipped.mkdir()
    shutil.copy(file, shipped / "target.gguf")
    shutil.copy(file, shipped / "draft.gguf")
    monkeypatch.setattr(corpus, "split", lambda: (small_library, small_library))
    monkeypatch.setattr(prompts, "COUNTS", {"docs": 2})
    wanted = target_prompts.Wanted(16, first_epoch=10, longest=230, limits=(4,), texts=8, held_out=8)
    place = stages.WorkFolders(tmp_path / "work", tmp_path / "out", torch.device("cpu"))
    place.work.mkdir()
    lines = []
    stages.go_on(place, lines.append, shipped, plan=Plan(tokens=512, batch=256), wanted=wanted)
    assert (place.out / "target.gguf").read_bytes() == file.read_bytes()
    assert (place.out / "draft.gguf").read_bytes() != file.read_bytes()
    assert f"edgespec bench --target {place.out}/target.gguf --draft {place.out}/draft.gguf" in lines[-1]


def test_weights_are_rounded_as_in_the_file(network):
    """To the last bit what a Q4_0 file gives back; then the exact weights again, with their gradients."""
    kind = gguf.GGMLQuantizationType.Q4_0
    exact = [p.detach().clone() for p in network.parameters()]
    with rounding.rounded(network):
        for weight, before in zip(network.parameters(), exact, strict=True):
            if weight.ndim == 2:
                file = gguf.quants.dequantize(gguf.quants.quantize(before.numpy(), kind), kind)
                assert np.array_equal(weight.detach().numpy(), file)
        network(torch.arange(8)[None]).sum().backward()
    assert all(torch.equal(p, before) for p, before in zip(network.parameters(), exact, strict=True))
    assert network.embed.weight.grad is not None
    network.zero_grad()


def test_a_block_is_made_for_the_shipped_target(tmp_path, monkeypatch, small_library):
    """All of it, small; what is made is a target that guesses."""
    from edgespec.pairs.check import find_head
    from edgespec_train.recipes import corpus, mtp, stages, target_prompts

    monkeypatch.setattr(corpus, "split", lambda: (small_library, small_library))
    wanted = target_prompts.Wanted(16, first_epoch=30, longest=112, limits=(6,), texts=4, held_out=4)
    place = stages.WorkFolders(tmp_path, tmp_path / "out", torch.device("cpu"))
    lines = []
    mtp.make(place, lines.append, plan=Plan(tokens=256, batch=128), wanted=wanted)
    head = find_head(place.out / "target-mtp.gguf", None)
    assert head and head.kind == "mtp" and not head.alone
    assert "edgespec bench --target" in lines[-1]
