"""`edgespec distill`: a head is trained on its target's texts, and the file is what was trained.

Skipped where torch is absent, as it is in `make test`: with the extra `train`,
`python -m pytest tests/train/test_distill.py -m ''` runs all of it.
"""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="drafts are trained with torch; install the extra `train`")
pytest.importorskip("llama_cpp", reason="targets answer through llama.cpp")


from head_guesser import HeadGuesser  # noqa: E402

from edgespec.core.request import Request  # noqa: E402
from edgespec.engine.pair import Pair  # noqa: E402
from edgespec.llama.heads.medusa_context import MedusaModel  # noqa: E402
from edgespec.pairs.settings import PairSettings  # noqa: E402
from edgespec.sampling.sampler import Sampling  # noqa: E402
from edgespec_models import tiny  # noqa: E402
from edgespec_train import learn, questions, recorded, round_plan, start, training_run  # noqa: E402
from edgespec_train.hidden import Hidden  # noqa: E402
from edgespec_train.recorded import PromptToRecord  # noqa: E402
from edgespec_train.target_file import open_target  # noqa: E402
from edgespec_train.train import held_out_figures  # noqa: E402
from edgespec_train.training_run import TrainingRun  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
torch.set_num_threads(1)


class Never:
    wanted = False


def run(folder, kind="eagle3", begin_with=None):
    return TrainingRun((tiny.target_path(),), folder, kind, 160, 8, 1, 1 << 30, begin_with)


def asked(target, seed):
    for n, (about, turns) in enumerate(questions.questions(seed)):
        if questions.held_out(about) == (seed == -1):
            yield PromptToRecord(target.tokenise(turns[0])[:60], 1.0 if n % 2 else 0.0, 60)


def trained(made, seconds, log=lambda line: None):
    now = time.monotonic()
    training_run.record_texts(made, lambda s: asked(s, -1), asked, now + 0.4 * seconds, Never(), log)
    return learn.learn(made, now + seconds, Never(), log)


def learned_from(made, texts, tokens):
    """Record so many texts of the target, and learn so many tokens, however crowded the machine is."""

    def some(target, seed):
        return islice(asked(target, seed), texts if seed >= 0 else 24)

    far = time.monotonic() + 10_000
    training_run.record_texts(made, lambda target: some(target, -1), some, far, Never(), lambda line: None)
    plan = asdict(round_plan.planned(tokens, 512, first=made.begin_with is None))
    made.plan_file.write_text(json.dumps({"number": 1, "plan": plan, "shards": 1, "before": 0.0}))
    return learn.learn(made, far, Never(), lambda line: None)


def shared_at_first(made):
    held_out = list(recorded.read(made.folder / "held-out-0.npz"))
    student = learn.begin(made, open_target(*made.target), None)
    return held_out_figures(student, held_out, None)[0][2]


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    """A run of a few seconds."""
    made = run(tmp_path_factory.mktemp("run"))
    return made, learned_from(made, 48, 10_000)


def test_a_few_seconds_teach_a_head_something(short):
    """From 0.02 to 0.07 of shared probability at least; a minute: the slow test below."""
    made, learned = short
    before = shared_at_first(made)
    assert learned.complete and before < 0.05 and learned.after > before + 0.05
    assert learned.draft.stat().st_size > 500_000
    assert not list(made.folder.glob("*.part"))


def shared_in_llama_cpp(path, held_out):
    """Return what target and head share at least, on warm texts, by the head's file."""
    found = []
    target = tiny.target_path()
    with Hidden(target, training_run.taps_of(10), context=192) as reader:
        guesser = HeadGuesser(reader, path, context=192)
        for text in held_out:
            if text.temperature == 0:
                continue
            guesser.forget(0)
            ids = text.ids.astype(int).tolist()
            states = guesser.encoded(text.states.astype(np.float32))
            rows = guesser.read(ids[1:], states, 1, every=True)[text.prompt - 2 :][: len(text.top_ids)]
            rows = rows.astype(np.float64)
            q = np.exp(rows - rows.max(1, keepdims=True))
            q /= q.sum(1, keepdims=True)
            top = np.take_along_axis(q, text.top_ids.astype(np.int64), 1)
            found.append(np.minimum(top, text.top_p.astype(np.float64)).sum(1))
        guesser.close()
    return np.concatenate(found)


def test_the_file_says_in_llama_cpp_what_torch_says(short):
    """Shared probability on held-out text, place by place, the same within 0.01 in the mean."""
    made, learned = short
    held_out = [
        t for t in recorded.read(made.folder / "held-out-0.npz") if len(t.top_ids) > 3 and t.prompt > 2
    ]
    head = start.begin(open_target(tiny.target_path()), "eagle3")
    head.load_state_dict(learn.weights_of(made.state_file(learned.rounds)))
    theirs = shared_in_llama_cpp(learned.draft, held_out)
    from edgespec_train.batch import batch_of
    from edgespec_train.divergence import agreement
    from edgespec_train.train import guesses, output_of

    ours = []
    for text in held_out:
        if text.temperature:
            states, rows = next(iter(guesses(head, batch_of([text], None), 1)))
            ours.append(agreement(states @ output_of(head).T, rows)[1].detach().numpy())
    ours = np.concatenate(ours)
    assert len(ours) == len(theirs) > 100
    assert abs(ours.mean() - theirs.mean()) < 0.01
    assert np.abs(ours - theirs).mean() < 0.01  # weights of 8 bits


class After:
    """StopRequest for an end after so many looks."""

    def __init__(self, looks):
        self.looks = looks

    @property
    def wanted(self):
        self.looks -= 1
        return self.looks < 0


def test_a_course_that_was_stopped_goes_on_as_if_it_had_not_been(short, tmp_path):
    """The same texts and the same plan, learned at once or with interruptions: the same file, to the byte."""
    made, _ = short
    files = []
    for name, stops in (("whole", [Never()]), ("stopped", [After(7), After(9), Never()])):
        copy = run(tmp_path / name)
        shutil.copytree(made.folder, copy.folder, ignore=shutil.ignore_patterns("round-*", "new-*"))
        for stop in stops:
            learned = learn.learn(copy, time.monotonic() + 300, stop, lambda line: None)
            assert learned.complete == (stop is stops[-1])
        files.append(learned.draft.read_bytes())
    assert files[0] == files[1]


def test_medusa_heads_learn_and_numpy_computes_what_torch_does(tmp_path):
    """What the first head shares with the target rises by more than a quarter, on a few seconds' texts."""
    made = run(tmp_path, "medusa")
    learned = learned_from(made, 32, 20_000)
    target = open_target(*made.target)
    heads = start.medusa(target)
    assert learned.complete and learned.after > 1.25 * shared_at_first(made)
    heads.load_state_dict(learn.weights_of(made.state_file(learned.rounds)))
    model = MedusaModel(learned.draft, target.vocab)
    states = made.held_out[0].states[:5].astype(np.float32)
    with torch.inference_mode():
        for place, g in enumerate(heads.guesses(torch.from_numpy(states))):
            expected = heads.output(g).numpy()
            np.testing.assert_allclose(model.logits(place, states), expected, rtol=1e-3, atol=1e-3)
    with Pair(made.target[0], learned.draft, PairSettings(remember=False, n_ctx=256)) as pair:
        prompt = made.held_out[0].ids[: made.held_out[0].prompt].astype(np.int32)
        how = Request(Sampling(temperature=0), max_tokens=24, drafter="medusa")
        texts = [
            [token for round_ in pair.generate(prompt, asked) for token in round_.tokens]
            for asked in (how, replace(how, drafter="none"))
        ]
    assert texts[0] == texts[1]


def test_a_folder_of_an_earlier_version_goes_on(tmp_path):
    """Its texts were `heard-N` and `watched-0`, its plan `course.json`."""
    made = run(tmp_path)
    for name in ("heard-0.npz", "heard-1.npz", "watched-0.npz", "course.json", "heard-2.npz.part"):
        (tmp_path / name).write_text(name)
    made.make_folder()
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "recorded-0.npz": "heard-0.npz",
        "recorded-1.npz": "heard-1.npz",
        "held-out-0.npz": "watched-0.npz",
        "plan.json": "course.json",
    }


@pytest.mark.parametrize("begin_with", [None, tiny.draft_path()])
def test_where_no_layers_are_shown_a_small_draft_learns(tmp_path, begin_with):
    made = run(tmp_path, "draft", begin_with)
    learned = learned_from(made, 24, 4_000)
    if begin_with is None:
        assert learned.after > shared_at_first(made) + 0.02
    else:
        assert learned.after > 0.3, "it goes on from what the draft knew: one from nothing has 0.1"
    opened = open_target(learned.draft)
    assert opened.architecture == "llama" and opened.vocab == 4096


def test_ids_of_large_vocabularies_are_kept(tmp_path):
    text = recorded.RecordedText(
        np.asarray([5, 151_000, 7], recorded.id_type(152_000)),
        1,
        0.0,
        np.zeros((2, 3), np.float16),
        np.full((2, recorded.TOP), 150_999, np.uint32),
        np.zeros((2, recorded.TOP), np.float16),
    )
    recorded.write(tmp_path / "recorded-0.npz", [text])
    (again,) = recorded.read(tmp_path / "recorded-0.npz")
    assert again.ids.tolist() == [5, 151_000, 7] and again.top_ids.max() == 150_999
    assert recorded.id_type(1 << 16) is np.uint16
    assert [ids.tolist() for ids in recorded.ids_of(tmp_path / "recorded-0.npz")] == [[5, 151_000, 7]]


def test_what_was_written_before_is_read_as_it_would_be_written(short):
    """A text of the user's gives the rows and states that it had when the target said it."""
    made, _ = short
    texts = [t for t in recorded.read(made.folder / "held-out-0.npz") if t.temperature == 0][:3]
    from edgespec_train.recording import record

    with Hidden(tiny.target_path(), training_run.taps_of(10), context=160, sequences=4) as target:
        asked_again = [
            PromptToRecord(t.ids[: t.prompt].tolist(), 0.0, 0, tuple(t.ids[t.prompt :].tolist()))
            for t in texts
        ]
        again = list(record(target, asked_again, {1}, 4, 0))
    for one, other in zip(texts, again, strict=True):
        assert one.ids.tolist() == other.ids.tolist() and one.prompt == other.prompt
        np.testing.assert_allclose(one.top_p, other.top_p, atol=0.02)
        assert (one.top_ids[:, 0] == other.top_ids[:, 0]).mean() > 0.95
        np.testing.assert_allclose(one.states, other.states, atol=0.5)


def command(folder, *words):
    """Return how `edgespec distill embedded` is run, with folders of its own."""
    paths = os.pathsep.join([*(str(ROOT / part) for part in (".", "tui", "models")), *sys.path])
    own = {"EDGESPEC_DATA_DIR": str(folder / "data"), "EDGESPEC_CACHE_DIR": str(folder / "cache")}
    argv = [sys.executable, "-m", "edgespec", "distill", "embedded", "--folder", str(folder / "made"), *words]
    return argv, {**os.environ, "PYTHONPATH": paths, **own}


def test_a_full_disk_is_one_sentence(tmp_path):
    """No file may be larger than 200 KB here, as if there were no more room."""
    argv, environment = command(tmp_path, "--minutes", "0.3")

    def no_room():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))

    done = subprocess.run(
        argv, env=environment, preexec_fn=no_room, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert "cannot be written" in last and "make room" in last and "Traceback" not in done.stderr
    assert not list((tmp_path / "made").rglob("*.part"))


@pytest.mark.slow
def test_what_was_killed_goes_on(tmp_path):
    argv, environment = command(tmp_path, "--minutes", "0.5")
    with subprocess.Popen(
        argv, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as run:
        assert run.stderr is not None
        for line in run.stderr:
            if line.startswith("round-1"):
                os.killpg(run.pid, signal.SIGKILL)
                break
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode in (0, 1), done.stderr
    assert "continuing with texts not trained on yet" in done.stderr
    assert "held-out acceptance" in done.stdout


@pytest.mark.slow
def test_a_minute_teaches_a_head_much(tmp_path):
    """From 0.02 of shared probability on held-out text to 0.15 at least."""
    made = run(tmp_path)
    learned = trained(made, 60.0)
    assert learned.before < 0.05 and learned.after > learned.before + 0.13
    held_out = list(recorded.read(made.folder / "held-out-0.npz"))
    head = start.begin(open_target(tiny.target_path()), "eagle3")
    head.load_state_dict(learn.weights_of(made.state_file(learned.rounds)))
    assert held_out_figures(head, held_out, None)[0][2] == pytest.approx(learned.after, abs=0.01)
    assert made.recorded


WIDE = {"attn_q": (128, 64), "attn_k": (64, 64), "attn_v": (64, 64), "attn_output": (64, 128)}
WIDE |= {"ffn_gate": (96, 64), "ffn_up": (96, 64), "ffn_down": (64, 96)}


@pytest.fixture
def qwen(tmp_path):
    """A small qwen3 of random weights: heads wider than width / heads, an output matrix of its own."""
    from edgespec_train.model_file import About, copy_vocabulary, finish, open_writer

    rng, path = np.random.default_rng(4), tmp_path / "qwen.gguf"
    writer = open_writer("qwen3", About("small", "a test's", "0.1M", "0"))
    for add, value in (
        (writer.add_context_length, 512), (writer.add_embedding_length, 64), (writer.add_block_count, 3),
        (writer.add_feed_forward_length, 96), (writer.add_head_count, 2), (writer.add_head_count_kv, 1),
        (writer.add_key_length, 64), (writer.add_value_length, 64), (writer.add_rope_freq_base, 10000.0),
        (writer.add_layer_norm_rms_eps, 1e-6), (writer.add_vocab_size, 4096),
    ):  # fmt: skip
        add(value)
    copy_vocabulary(writer, open_target(tiny.target_path()).reader)
    tensors = {
        name: rng.standard_normal((4096, 64)).astype(np.float32)
        for name in ("token_embd.weight", "output.weight")
    }
    tensors["output_norm.weight"] = np.ones(64, np.float32)
    for i in range(3):
        for name, shape in WIDE.items():
            weight = rng.standard_normal(shape) * 0.2
            tensors[f"blk.{i}.{name}.weight"] = weight.astype(np.float32)
        for name, size in (("attn_norm", 64), ("ffn_norm", 64), ("attn_q_norm", 64), ("attn_k_norm", 64)):
            tensors[f"blk.{i}.{name}.weight"] = np.ones(size, np.float32)
    finish(writer, tensors, "F32", path)
    return path


def test_a_head_for_qwen3_says_in_llama_cpp_what_torch_says(qwen, tmp_path):
    """Its rotary pairs lie otherwise than Llama's, its heads are wider, its output is not its embedding."""
    from edgespec_train.head_file import write_eagle3
    from edgespec_train.model_file import About

    target, layers = open_target(qwen), training_run.taps_of(3)
    assert target.block_is_plain
    head = start.begin(target, "eagle3")
    path = tmp_path / "head.gguf"
    write_eagle3(head, target, path, About("h", "", "", ""), layers, np.arange(4096), "F32", "F32")
    ids = np.random.default_rng(1).integers(300, 4000, 30).tolist()
    with Hidden(qwen, layers, context=64) as reader:
        reader.logits(ids)
        states = reader.states(len(ids))[:-1]
        guesser = HeadGuesser(reader, path, context=64)
        theirs = guesser.read(ids[1:], guesser.encoded(states), 1, every=True)
        guesser.close()
    with torch.inference_mode():
        at = torch.arange(len(ids) - 1)
        g = head.step(torch.tensor([ids[1:]]), head.begin(torch.from_numpy(states)[None]), 0, at, [])
        ours = head.logits(g)[0].numpy()
    assert ours.std() > 0.5 and np.abs(ours - theirs).max() < 0.01
