"""Heads: what torch computes, llama.cpp computes. Skipped where torch is absent."""

import random

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="heads are trained with torch; install the extra `train`")
pytest.importorskip("tokenizers", reason="the recipes need tokenizers; install the extra `train`")
pytest.importorskip("llama_cpp", reason="heads are checked with llama.cpp")

from head_guesser import HeadGuesser  # noqa: E402

from edgespec_train import head_file, recorded, recording, shards, start, train  # noqa: E402
from edgespec_train.batch import batch_of  # noqa: E402
from edgespec_train.divergence import Rows, agreement, divergence, divergence_of  # noqa: E402
from edgespec_train.hidden import Hidden  # noqa: E402
from edgespec_train.model_file import About  # noqa: E402
from edgespec_train.network import Llama, Shape  # noqa: E402
from edgespec_train.recipes.export import export  # noqa: E402
from edgespec_train.recipes.tokenizer import train_tokenizer  # noqa: E402
from edgespec_train.recorded import (  # noqa: E402
    TOP,
    PromptToRecord,
    RecordedText,
)
from edgespec_train.target_file import open_target  # noqa: E402
from edgespec_train.train import Plan  # noqa: E402

torch.set_num_threads(1)  # more would wait for each other longer than they compute
SMALL = Shape(width=64, layers=3, heads=2, kv_heads=1, head_dim=32, ffn=96, vocab=512, context=512)
TAPS = (0, 1, 2)
ABOUT = About("small", "a test's", "0.1M", "0")
TEXT = random.Random(5).choices(range(50, 512), k=40)
EXACT = 0.01  # a logit; their standard deviation is about 3


@pytest.fixture(scope="module")
def target(small_library, tmp_path_factory):
    """A small target of random weights, as a file."""
    torch.manual_seed(0)
    network = Llama(SMALL)
    for weight in network.parameters():
        if weight.ndim == 2:
            torch.nn.init.normal_(weight, std=0.2)
    path = tmp_path_factory.mktemp("target") / "small.gguf"
    tokenizer = train_tokenizer([f.text for f in small_library.files], vocab=SMALL.vocab)
    export(network, tokenizer, path, "F32", ABOUT)
    return path


@pytest.fixture(scope="module")
def with_mtp(target, tmp_path_factory):
    """An untrained MTP block, and the target's file with it."""
    opened, path = open_target(target), tmp_path_factory.mktemp("mtp") / "mtp.gguf"
    head = start.begin(opened, "mtp")
    head_file.write_mtp(head, opened, path, ABOUT, "F32")
    return head, path


@pytest.fixture(scope="module")
def with_eagle(target, tmp_path_factory):
    """An untrained EAGLE-3 head that may guess a quarter of the tokens, its file, and those tokens."""
    opened, path = open_target(target), tmp_path_factory.mktemp("eagle") / "eagle.gguf"
    kept = np.sort(np.random.default_rng(1).permutation(SMALL.vocab)[:128])
    head = start.begin(opened, "eagle3", kept)
    head_file.write_eagle3(head, opened, path, ABOUT, TAPS, kept, "F32", "F32")
    return head, path, kept


def in_torch(head, states, tokens):
    """Return the logits (T, V) of a head's rows, and of one more that follows its own state."""
    rows, known = torch.tensor([tokens]), torch.from_numpy(states)[None]
    with torch.inference_mode():
        keys = []
        g = head.step(rows, head.begin(known), 0, torch.arange(rows.shape[1]), keys)
        alone = head.step(
            rows, g, 1, torch.arange(rows.shape[1]), keys
        )  # each row's second step, with its own token again
        return head.logits(g)[0].numpy(), head.logits(alone)[0, -1].numpy()


def test_a_target_with_a_block_says_what_it_says_without(target, with_mtp):
    with Hidden(target, None, context=64) as alone, Hidden(with_mtp[1], context=64) as both:
        assert np.abs(alone.logits(TEXT) - both.logits(TEXT)).max() < EXACT


def test_an_mtp_block_in_llama_cpp_computes_what_torch_does(with_mtp):
    head, path = with_mtp
    with Hidden(path, context=64, mtp=True) as reader:
        reader.logits(TEXT)
        states = np.concatenate((np.zeros((1, SMALL.width), np.float32), reader.states(len(TEXT))[:-1]))
        guesser = HeadGuesser(reader, context=64)
        expected, after = in_torch(head, states, TEXT)
        assert np.abs(guesser.read(TEXT, states, 0, every=True) - expected).max() < EXACT
        guesser.forget(0)
        guesser.read(TEXT, states, 0)
        row = guesser.read([TEXT[-1]], guesser.own_state(), len(TEXT))[0]
        assert np.abs(row - after).max() < EXACT
        guesser.close()


def test_an_eagle3_head_in_llama_cpp_computes_what_torch_does(target, with_eagle):
    head, path, kept = with_eagle
    with Hidden(target, TAPS, context=64) as reader:
        reader.logits(TEXT)
        states = reader.states(len(TEXT))[:-1]
        guesser = HeadGuesser(reader, path, context=64)
        expected, after = in_torch(head, states, TEXT[1:])
        rows = guesser.read(TEXT[1:], guesser.encoded(states), 1, every=True)
        assert np.abs(rows[:, kept] - expected).max() < EXACT
        assert np.isneginf(np.delete(rows, kept, axis=1)).all()
        guesser.forget(1)
        guesser.read(TEXT[1:], guesser.encoded(states), 1)
        row = guesser.read([TEXT[-1]], guesser.own_state(), len(TEXT))[0]
        assert np.abs(row[kept] - after).max() < EXACT
        guesser.close()


def pieces(reader, guesser, states):
    """Return the last row read at once, and in two pieces with guesses taken back between them."""
    first = guesser.first
    guesser.forget(0)
    whole = guesser.read(TEXT[first:], guesser.encoded(states), first)
    guesser.forget(0)
    guesser.read(TEXT[first:20], guesser.encoded(states[: 20 - first]), first)
    for i in range(3):
        guesser.read([60 + i], guesser.own_state(), 20 + i)
    guesser.forget(20)
    return whole, guesser.read(TEXT[20:], guesser.encoded(states[20 - first :]), 20)


def test_an_mtp_block_is_read_in_pieces_as_at_once(with_mtp):
    with Hidden(with_mtp[1], context=64, mtp=True) as reader:
        reader.logits(TEXT)
        states = np.concatenate((np.zeros((1, SMALL.width), np.float32), reader.states(len(TEXT))[:-1]))
        guesser = HeadGuesser(reader, context=64)
        whole, parts = pieces(reader, guesser, states)
        guesser.forget(20)
        every = guesser.read(TEXT[20:], states[20:], 20, every=True)
        guesser.close()
    assert np.abs(parts - whole).max() < EXACT and np.abs(every[-1] - whole).max() < EXACT


def test_an_eagle3_head_is_read_in_pieces_as_at_once(target, with_eagle):
    """llama.cpp's graph of it gives a batch's first row for the last, where the last alone is flagged."""
    head, path, kept = with_eagle
    with Hidden(target, TAPS, context=64) as reader:
        reader.logits(TEXT)
        states = reader.states(len(TEXT))[:-1]
        guesser = HeadGuesser(reader, path, context=64)
        whole, parts = pieces(reader, guesser, states)
        guesser.close()
    expected, _ = in_torch(head, states, TEXT[1:])
    assert np.abs(whole[0, kept] - expected[-1]).max() < EXACT
    assert np.abs(parts[0, kept] - expected[-1]).max() < EXACT
    assert np.abs(expected[-1] - expected[0]).max() > 100 * EXACT


@pytest.fixture(scope="module")
def texts(target):
    asked = [
        PromptToRecord(TEXT[: 5 + i], recorded.TEMPERATURES[i % 8], 24 if i % 3 else 8) for i in range(20)
    ]
    with Hidden(target, TAPS, context=64, sequences=4) as target:
        return list(recording.record(target, asked, {7, 8, 9}, 4, seed=0))


def shows(reader, text):
    """Hold a text against a fresh reading of it."""
    ids = text.ids[:-1].astype(int).tolist()
    reader.forget()
    rows = reader.logits(ids)[text.prompt - 1 :]
    error = np.abs(text.states - reader.states(len(ids)))  # of products with 16 bits; the states are about 10
    assert error.max() < 0.2 and error.mean() < 0.02, (error.max(), error.mean())
    top_ids, top_p = recording.best_of(rows)
    np.testing.assert_allclose(text.top_p, top_p, atol=0.01)
    tie = top_p[:, 0] - top_p[:, 1] < 0.001
    assert ((text.top_ids[:, 0] == top_ids[:, 0]) | tie).all()
    if text.temperature == 0:
        assert text.ids[text.prompt :].tolist() == text.top_ids[:, 0].tolist()


def test_what_is_read_next_to_other_texts_is_what_a_fresh_reading_shows(target, texts):
    assert sorted(t.prompt for t in texts) == list(range(5, 25))
    with Hidden(target, TAPS, context=64) as reader:
        for text in texts:
            shows(reader, text)


def test_texts_end_with_an_end_token_or_at_their_limit(texts):
    for text in texts:
        said = text.ids[text.prompt :].tolist()
        assert not {7, 8, 9} & set(said[:-1])
        assert said[-1] in {7, 8, 9} or len(said) in {8, 24}


def test_a_shard_gives_back_what_was_recorded(texts, tmp_path):
    recorded.write(tmp_path / "shard.npz", texts)
    for kept, text in zip(recorded.read(tmp_path / "shard.npz"), texts, strict=True):
        assert kept.prompt == text.prompt and kept.temperature == pytest.approx(text.temperature)
        for name in ("ids", "states", "top_ids", "top_p"):
            np.testing.assert_array_equal(getattr(kept, name), getattr(text, name))
    assert recorded.written(tmp_path / "shard.npz") == sum(len(t.ids) - t.prompt for t in texts)


def test_shards_that_are_there_are_not_gathered_again(target, tmp_path):
    asked, lines = [], []

    def prompts(number):
        asked.append(number)
        return [PromptToRecord(TEXT[: 6 + number], 0.7, 12) for _ in range(4)]

    with Hidden(target, TAPS, context=64, sequences=4) as target:

        def record(wanted, seed):
            return recording.record(target, wanted, {7}, 4, seed)

        first = shards.record_goal(record, tmp_path, "recorded", prompts, 60, lines.append)
        again = shards.record_goal(record, tmp_path, "recorded", prompts, 100, lines.append)
    assert asked == list(range(len(again))) and again[: len(first)] == first


def drawn_from(p, temperature, count=20_000):
    scores = torch.tensor(p).log().repeat(count, 1)
    best = scores.argmax(-1)
    return recording.draw(scores, best, torch.full((count,), temperature), torch.Generator().manual_seed(2))


def test_draws_follow_the_temperature():
    drawn = drawn_from([0.5, 0.3, 0.2], 0.5).numpy()
    expected = np.asarray([25, 9, 4]) / 38  # squares
    assert np.abs(np.bincount(drawn, minlength=3) / 20_000 - expected).max() < 0.015  # 4 standard errors
    assert (drawn_from([0.5, 0.3, 0.2], 0.0) == 0).all()


def test_draws_from_a_large_vocabulary_are_exact():
    """The sums over 50,000 tokens are of 32 bits: nothing of the tail is lost, nothing without mass drawn."""
    p = np.full(50_000, 0.5 / 24_999)
    p[::2], p[17_000] = 0, 0.5  # half of the tail cannot be drawn
    drawn = drawn_from((p / p.sum()).astype(np.float32), 1.0, 600).numpy()
    assert (p[drawn] > 0).all()
    assert abs((drawn == 17_000).mean() - 0.5) < 0.082  # 4 standard errors
    assert abs(drawn[drawn != 17_000].mean() / 25_000 - 1) < 0.14


def shards_of(texts, folder):
    recorded.write(folder / "recorded-0.npz", texts)
    return [folder / "recorded-0.npz"]


PLAN = Plan(
    tokens=24_000, anneal=15_000, warmup=500, batch=400, micro=400, matrix_rate=1e-2, vector_rate=5e-3
)


def test_training_finds_the_target_again(target, with_eagle, texts, tmp_path):
    """On a handful of texts, which can be learned by heart: shared probability rises from about a tenth."""
    kept = with_eagle[2]
    numbers = np.full(SMALL.vocab, -1)
    numbers[kept] = np.arange(len(kept))
    head = start.begin(open_target(target), "eagle3", kept)
    before = train.held_out_figures(head, texts, numbers)[0]
    assert train.train(
        head, shards_of(texts, tmp_path), texts, numbers, tmp_path / "head.pt", PLAN, lambda line: None
    )
    after = train.held_out_figures(head, texts, numbers)[0]
    assert after[2] > before[2] + 0.03


def test_a_training_that_was_stopped_goes_on_as_if_it_had_not_been(target, texts, tmp_path):
    plan = Plan(tokens=4_000, anneal=2_000, warmup=500, batch=400, micro=200)

    class Never:
        wanted = False

    class Soon:
        asked = 0

        @property
        def wanted(self):
            self.asked += 1
            return self.asked > 5

    narrow = [
        recorded.RecordedText(t.ids, t.prompt, t.temperature, t.states[:, : SMALL.width], t.top_ids, t.top_p)
        for t in texts
    ]
    shards = shards_of(narrow, tmp_path)
    found = []
    for name, stops in (("whole", [Never()]), ("stopped", [Soon(), Soon(), Never()])):
        for stop in stops:
            head = start.begin(open_target(target), "mtp")
            path = tmp_path / f"{name}.pt"
            train.train(head, shards, narrow, None, path, plan, lambda line: None, stop=stop)
        found.append(head.fuse.weight.detach().numpy().copy())
    np.testing.assert_array_equal(*found)


def test_the_loss_is_nothing_where_the_head_says_what_the_target_does():
    p = torch.tensor([[0.6, 0.3, 0.1]])
    rows = Rows(torch.tensor([[2, 0, 1]]), p, torch.zeros(1))
    same = torch.log(torch.tensor([[0.3, 0.1, 0.6]]))
    assert float(divergence(same, rows)) == pytest.approx(0, abs=1e-5)
    assert float(divergence(same, rows, tv=1.0)) == pytest.approx(0, abs=1e-5)
    other = torch.log(torch.tensor([[0.1, 0.3, 0.6]]))
    assert float(divergence(other, rows)) == pytest.approx(0.2 * np.log(3), abs=1e-5)
    assert float(divergence(other, rows, tv=1.0)) == pytest.approx(0.2, abs=1e-5)


@pytest.mark.parametrize("tv", [0.0, 0.5])
def test_the_loss_by_parts_has_the_value_and_the_gradient_of_the_loss(tv):
    noise = torch.Generator().manual_seed(3)
    h, weight = torch.randn(24, 16, generator=noise), torch.randn(64, 16, generator=noise)
    p = torch.randn(24, 64, generator=noise).softmax(-1).topk(8)
    ids = torch.where(p.indices < 50, p.indices, -1)  # some tokens the head has not
    rows = Rows(ids, p.values, 0.15 * (torch.arange(24) % 2))
    one, other = (h.clone().requires_grad_() for _ in range(2))
    losses = divergence(one @ weight.T, rows, tv), divergence_of(other, weight, rows, tv, chunk=7)
    for loss in losses:
        (2 * loss).backward()
    torch.testing.assert_close(losses[1], losses[0])
    torch.testing.assert_close(other.grad, one.grad)


def test_rows_that_go_on_guess_what_they_would_among_all(target, with_eagle):
    """Of later steps a drawn part is computed; the first step's rows are all there to look at."""
    head, _, kept = with_eagle
    noise = np.random.default_rng(5)
    text = RecordedText(
        np.asarray(TEXT, np.uint16),
        1,
        1.0,
        noise.normal(size=(len(TEXT) - 1, 3 * SMALL.width)).astype(np.float16),
        noise.integers(0, SMALL.vocab, (len(TEXT) - 1, TOP)).astype(np.uint16),
        np.full((len(TEXT) - 1, TOP), 1 / TOP, np.float16),
    )
    some = batch_of([text], None)
    with torch.inference_mode():
        whole = [g for g, _ in train.guesses(head, some, 3)]
        part = [g for g, _ in train.guesses(head, some, 3, seed=1)]
    assert len(part[0]) == len(whole[0]) and 0 < len(part[1]) == len(part[2]) < len(whole[1]) / 2
    for some_rows, all_rows in zip(part, whole, strict=True):
        apart = (some_rows[:, None] - all_rows[None]).abs().amax(-1)  # (rows, rows)
        assert float(apart.min(1).values.max()) < 1e-3


def test_a_token_that_the_head_has_not_is_left_out_of_what_it_learns():
    """The rest is what it should say, and the place counts for the rest alone."""
    rows = Rows(torch.tensor([[-1, 0, 1]]), torch.tensor([[0.5, 0.25, 0.25]]), torch.zeros(1))
    even, odd = torch.zeros(1, 2), torch.log(torch.tensor([[0.75, 0.25]]))
    assert float(divergence(even, rows)) == pytest.approx(0, abs=1e-5)
    assert float(divergence(odd, rows)) == pytest.approx(0.5 * 0.5 * np.log(4 / 3), abs=1e-5)
    first, shared = agreement(even, rows)
    assert float(first) == 0 and float(shared) == pytest.approx(0.5)
