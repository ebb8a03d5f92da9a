"""The embedded pair's projector: how it is made, and what it sees of pictures that it did not learn from."""

import random
from collections import Counter
from dataclasses import replace
from io import BytesIO

import numpy as np
import pytest

from edgespec.core.attachment import Attachment
from edgespec.core.request import Request
from edgespec.engine.media_reader import SHIPPED_EYE, MediaReader
from edgespec.engine.pair import Pair
from edgespec.errors import ModelUnsupportedError
from edgespec.llama.medium import Medium
from edgespec.llama.projector import mtmd_cpp
from edgespec.pairs.settings import PairSettings
from edgespec.protocol.media_marks import mark
from edgespec.sampling.sampler import Sampling
from edgespec_models import tiny

pytest.importorskip("PIL")
try:
    mtmd_cpp()
except ModelUnsupportedError as missing:
    pytest.skip(str(missing), allow_module_level=True)

HELD_OUT = 777  # of the generator that draws what the training did not


def drawing(rng, colour, shape):
    from edgespec_train.recipes import shapes

    file = BytesIO()
    shapes.draw(rng, colour, shape).save(file, "PNG")
    return Attachment("picture", file.getvalue())


def answer(pair, picture, question, **how):
    asked = [{"role": "user", "content": mark(0)["text"] + question}]
    prompt = pair.chat_tokens(asked, attached=[picture])
    held = pair.media_pieces(picture)  # as long as they are read
    request = Request(Sampling(temperature=0), 16, **how)
    tokens = [token for round_ in pair.generate(prompt, request) for token in round_.tokens]
    assert held
    return b"".join(pair.target.piece(token) for token in tokens).decode().strip()


@pytest.mark.slow
def test_colours_and_shapes_are_seen():
    """With guesses and without, the same; by the target with an MTP block, too."""
    from edgespec_train.recipes import shapes

    rng, n, right = random.Random(HELD_OUT), 108, Counter()
    how = PairSettings(n_ctx=512, threads=1, flash_attention=False, mmproj="auto", remember=False)
    with (
        Pair(tiny.target_path(), tiny.draft_path(), how) as pair,
        Pair(tiny.mtp_path(), None, how) as block,
    ):
        for i in range(n):
            colour, shape = list(shapes.COLOURS)[i % 9], shapes.SHAPES[i // 9 % 6]
            picture = drawing(rng, colour, shape)
            said = answer(pair, picture, "What colour is it?", drafter="none")
            right["colour"] += said == f"The colour is {colour}."
            assert answer(pair, picture, "What colour is it?", drafter="model", draft_length=3) == said
            assert answer(block, picture, "What colour is it?", draft_length=3) == said
            said = answer(pair, picture, "What shape is it?", drafter="none")
            right["shape"] += said == f"The shape is a {shape}."
    assert right["colour"] >= 0.9 * n and right["shape"] >= 0.9 * n, right


@pytest.mark.slow
def test_what_is_stated_of_it_is_true():
    """It is loaded with the first picture, so what it can do is written down."""
    with MediaReader(tiny.projector_path(), tiny.target_path(), on_gpu=False) as reader:
        assert reader._about() == SHIPPED_EYE


def test_what_is_written_is_what_was_trained(tmp_path):
    """llama.cpp's rows are torch's, as far as 8 bits go, and a stopped training goes on."""
    torch = pytest.importorskip("torch")
    from edgespec_train.recipes import eye, shapes, stages

    plans = {name: replace(plan, steps=2, batch=4) for name, plan in eye.PLANS.items()}
    place, lines = stages.WorkFolders(tmp_path, tmp_path / "out", torch.device("cpu")), []
    eye.make(place, lines.append, plans=plans, n_drawn=24)
    assert [line.partition(":")[0] for line in lines[1:4]] == ["words 2", "tower 2", "answers 2"]
    made = eye.Eye(256)
    kept = torch.load(tmp_path / "answers.pt")["learner"]
    made.load_state_dict({name[4:]: of for name, of in kept.items() if name.startswith("eye.")})
    picture = drawing(random.Random(1), "red", "star")
    with MediaReader(place.out / tiny.projector_path().name, tiny.target_path(), on_gpu=False) as reader:
        (medium,) = reader.pieces(picture)
    from PIL import Image

    with torch.no_grad():
        pixels = shapes.pixels(Image.open(BytesIO(picture.data)), eye.SIDE)
        rows = made(torch.from_numpy(pixels.copy())[None])[0].numpy()
    assert isinstance(medium, Medium) and medium.causal
    np.testing.assert_allclose(medium.rows, rows, atol=0.02 * float(np.abs(rows).max()))
    (place.out / tiny.projector_path().name).unlink()
    lines.clear()
    eye.make(place, lines.append, plans=plans, n_drawn=24)
    assert len(lines) == 2 and (place.out / tiny.projector_path().name).exists()
