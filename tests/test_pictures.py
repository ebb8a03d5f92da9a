"""Pictures: read as llama.cpp's own helper reads them, kept like text, and with guesses the same text."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import psutil
import pytest
import test_heads
from numpy.typing import NDArray
from tiny_gguf import write_hybrid, write_llama
from tiny_projector import Kind, png, wav, write_projector, write_seeing

from edgespec.core import media
from edgespec.core.attachment import Attachment
from edgespec.core.drafters.lookup import SuffixLookup
from edgespec.core.loop import Want
from edgespec.core.request import Request
from edgespec.core.values import Emitted, Failed, Started
from edgespec.engine import pair as module
from edgespec.engine.engine import Engine
from edgespec.engine.media_reader import MediaReader
from edgespec.engine.pair import Pair
from edgespec.errors import ModelUnsupportedError, SettingError
from edgespec.llama.medium import Medium
from edgespec.llama.projector import mtmd_cpp
from edgespec.pairs.settings import PairSettings
from edgespec.sampling.sampler import Sampling
from edgespec_models.gguf.header import read_file

pytest.importorskip("PIL")
try:
    mtmd = mtmd_cpp()
except ModelUnsupportedError as missing:
    pytest.skip(str(missing), allow_module_level=True)

SLOW: tuple[Kind, ...] = ("hunyuanvl", "idefics3")
KINDS: tuple[Kind, ...] = ("gemma3", "qwen2vl_merger")
PARAMS = (*KINDS, *(pytest.param(kind, marks=pytest.mark.slow) for kind in SLOW))
PICTURE, OTHER = Attachment("picture", png()), Attachment("picture", png(96, 96, (20, 90, 200)))
Tokens = NDArray[np.int32]


@pytest.fixture(scope="module", params=PARAMS)
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model and its projector."""
    kind = request.param
    assert kind in get_args(Kind)
    return write_seeing(tmp_path_factory.mktemp(kind), kind)


def loaded(files: tuple[Path, Path], draft: Path | None = None, **settings: Any) -> Pair:
    target, projector = files
    how = PairSettings(n_ctx=512, threads=1, remember=False, flash_attention=False, mmproj=str(projector))
    return Pair(target, draft, replace(how, **settings))


def prompt(pair: Pair, *parts: str | Attachment) -> tuple[Tokens, list[Medium]]:
    """Returns the tokens of texts and pictures, and what has to be held while they are read."""
    tokens: list[Tokens] = []
    held = []
    for part in parts:
        if isinstance(part, str):
            tokens.append(pair.target.tokenize(part.encode(), special=True, add_bos=False))
            continue
        for piece in pair.media_pieces(part):
            tokens.append(piece.cells if isinstance(piece, Medium) else piece)
            held += [piece] if isinstance(piece, Medium) else []
    return np.concatenate(tokens), held


def answered(
    engine: Engine, asked: Mapping[str, tuple[Tokens, Request]]
) -> tuple[dict[str, list[int]], int, int]:
    """Returns what an engine says to all of them at once, its guesses, and the tokens that were cached."""
    said: dict[str, list[int]] = {}
    drafted = cached = 0
    for id, (tokens, request) in asked.items():
        said[id] = []
        engine.submit(id, tokens, request)
    while not engine.idle:
        for event in engine.step():
            assert not isinstance(event, Failed), event
            if isinstance(event, Started):
                cached += event.cached_tokens
            if isinstance(event, Emitted):
                said[event.id] += event.round.tokens
                drafted += event.round.drafted
                assert not event.round.notice, event.round.notice
    return said, drafted, cached


PLAIN = Request(Sampling(temperature=0), 24, drafter="none")
SEEDED = Request(Sampling(), 24, seed=3, drafter="none")


def test_a_picture_is_read_as_by_llama_cpp(files: tuple[Path, Path]) -> None:
    """Tokens, positions and logits are those of `mtmd_helper_eval_chunks`."""
    import llama_cpp as C

    with loaded(files) as pair:
        tokens, held = prompt(pair, "Look: ", PICTURE, " What is it?")
        context = pair.contexts["target"]
        ours = context.score([Want(tokens)])[0][0].copy()
        params = mtmd.mtmd_context_params_default()
        params.use_gpu, params.n_threads, params.warmup = False, 1, False
        handle = mtmd.mtmd_init_from_file(str(files[1]).encode(), pair.target.handle, params)
        width, height, rgb = 160, 96, _pixels(PICTURE)
        bitmap = mtmd.mtmd_bitmap_init(width, height, (ctypes.c_uint8 * len(rgb)).from_buffer_copy(rgb))
        text = b"Look: <__media__> What is it?"
        asked = mtmd.mtmd_input_text(text, len(text), False, True)
        chunks, bitmaps = mtmd.mtmd_input_chunks_init(), (mtmd.mtmd_bitmap_p_ctypes * 1)(bitmap)
        assert not mtmd.mtmd_tokenize(handle, chunks, ctypes.byref(asked), bitmaps, 1)
        context.clear(0)
        position = ctypes.c_int32()
        memory = C.llama_get_memory(context.handle)
        assert not mtmd.mtmd_helper_eval_chunks(
            handle, context.handle, chunks, 0, 0, 512, True, ctypes.byref(position)
        )
        theirs = np.ctypeslib.as_array(C.llama_get_logits_ith(context.handle, -1), (pair.target.n_vocab,))
        assert mtmd.mtmd_helper_get_n_tokens(chunks) == tokens.size
        assert position.value == media.positions(tokens)
        np.testing.assert_allclose(ours, theirs, atol=2e-5)
        C.llama_memory_seq_rm(memory, 0, 0, -1)
        mtmd.mtmd_input_chunks_free(chunks)
        mtmd.mtmd_bitmap_free(bitmap)
        mtmd.mtmd_free(handle)
        assert held


def _pixels(attachment: Attachment) -> bytes:
    from io import BytesIO

    from PIL import Image

    return Image.open(BytesIO(attachment.data)).convert("RGB").tobytes()


@pytest.mark.slow
@pytest.mark.sample(1)
def test_with_guesses_it_is_the_same_text(
    files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several streams with pictures, by a draft and by lookup; rejected guesses leave no trace."""
    monkeypatch.setattr(module, "check_pair", lambda *_: None)
    draft = write_llama(tmp_path / "draft.gguf", noise=0.1)
    parts: dict[str, tuple[str | Attachment, ...]] = {
        "one": ("Look: ", PICTURE, " the people and the people and the"),
        "two": ("Look: ", PICTURE, " the people", OTHER, OTHER, " the people"),
        "none": (" the people and the people and the",),
    }
    with loaded(files) as pair:
        asked = {id: (prompt(pair, *of), one) for id, of in parts.items() for one in (PLAIN,)}
        asked |= {f"{id}, seeded": (prompt(pair, *of), SEEDED) for id, of in parts.items()}
        right = {}
        for id, ((tokens, _), request) in asked.items():
            pair.forget()
            right[id] = [token for round_ in pair.generate(tokens, request) for token in round_.tokens]
        assert right["one"] != right["two"]
    for guessing, drafter in ((draft, "model"), (files[0], "model"), (None, "lookup")):
        with loaded(files, guessing, slots=3) as pair:
            engine = Engine(pair, slots=3, cache_ram=2**24)
            for _ in range(2):  # then from the cache
                how = {"drafter": drafter, "draft_length": 4}
                held = {
                    id: (prompt(pair, *parts[id.partition(",")[0]]), one) for id, (_, one) in asked.items()
                }
                wanted = {id: (tokens, replace(one, **how)) for id, ((tokens, _), one) in held.items()}
                answer, drafted, _ = answered(engine, wanted)
                assert drafted and answer == right
            assert pair.media and pair.media.encoded == 2


@pytest.mark.sample(1)
def test_the_next_turn_reads_no_picture_again(files: tuple[Path, Path]) -> None:
    """It is neither encoded nor evaluated: in its slot, in another's, and after a stay in host memory."""
    with loaded(files, slots=2) as pair:
        engine = Engine(pair, slots=2, cache_ram=2**24)
        tokens, held = prompt(pair, "The first words. ", PICTURE, " the people and", " the time" * 20)
        answer, _, cached = answered(engine, {"first": (tokens, PLAIN)})
        assert not cached
        longer, again = prompt(pair, "The first words. ", PICTURE, " the people and", " the time" * 20)
        longer = np.concatenate([longer, np.array(answer["first"], np.int32), longer[-4:]])
        answer, _, cached = answered(engine, {"next": (longer, PLAIN), "beside": (longer, SEEDED)})
        assert cached >= 2 * tokens.size - 2
        other, _ = prompt(pair, " now" * 40)
        answered(engine, {f"{i}": (other[i:], PLAIN) for i in range(4)})
        later = np.concatenate([longer, np.array(answer["next"], np.int32), longer[-4:]])
        _, _, cached = answered(engine, {"much later": (later, PLAIN)})
        assert cached >= longer.size
        assert pair.media and pair.media.encoded == 1
        assert held and again


@pytest.mark.sample(1)
def test_long_prompts_are_read_in_chunks_that_cut_no_picture(files: tuple[Path, Path]) -> None:
    with loaded(files) as pair:
        tokens, held = prompt(pair, " the time" * 29, PICTURE, OTHER, " the people" * 30)
        right = [token for round_ in pair.generate(tokens, PLAIN) for token in round_.tokens]
        for chunk in (32, 64):
            pair.forget()
            answer, _, _ = answered(Engine(pair, slots=1, chunk=chunk), {"one": (tokens, PLAIN)})
            assert answer["one"] == right
        assert held


def test_penalties_and_a_second_stream_next_to_it(files: tuple[Path, Path]) -> None:
    """Cells of pictures are no tokens to a penalty: their numbers below zero took the last words' places."""
    sampling = Sampling(temperature=0, repeat_penalty=1.5, penalty_last_n=-1, dry_multiplier=0.8)
    with loaded(files) as pair:
        tokens, held = prompt(pair, " the", PICTURE, " people")
        request = replace(PLAIN, sampling=sampling, ignore_eos=True)
        generated = [token for round_ in pair.generate(tokens, request) for token in round_.tokens]
        assert len(generated) == 24 and held


def test_a_projector_of_another_model_is_refused_by_name(tmp_path: Path) -> None:
    """It would have ended the process: a marker that the vocabulary lacks is token -1."""
    target = write_llama(tmp_path / "plain.gguf")
    tiled = write_projector(tmp_path / "tiled.gguf", "idefics3", 64)
    wide = write_projector(tmp_path / "wide.gguf", "gemma3", 128)
    for projector, why in ((wide, "wide.gguf"), (target, "plain.gguf"), (tiled, "another model")):
        with pytest.raises(ModelUnsupportedError, match=why) as refused:
            MediaReader(projector, target, on_gpu=False)
        assert "\n" not in str(refused.value)


def test_what_is_no_picture_is_refused(files: tuple[Path, Path]) -> None:
    with MediaReader(files[1], files[0], on_gpu=False) as reader:
        good = png()
        bomb = png(3, 3).replace(b"\0\0\0\3\0\0\0\3", b"\0\0\xff\xff\0\0\xff\xff")
        for data in (b"", b"hello", good[:40], good[:-40], good[:100] + good[160:], bomb):
            with pytest.raises(SettingError, match="^the picture "):
                reader.pieces(Attachment("picture", data))
        with pytest.raises(SettingError, match="reads no sounds"):
            reader.pieces(Attachment("sound", b"RIFF"))
        assert reader.pieces(PICTURE)


@pytest.mark.sample(1)
def test_a_child_that_dies_costs_one_sentence(files: tuple[Path, Path]) -> None:
    with MediaReader(files[1], files[0], on_gpu=False) as reader:
        child = reader.encoder._child
        assert child
        child.kill()
        with pytest.raises(SettingError, match="could not be encoded"):
            reader.pieces(PICTURE)
        assert reader.pieces(PICTURE)


def test_cells_say_where_media_begin_and_what_position_they_have() -> None:
    rng = np.random.default_rng(1)
    for _ in range(200):
        parts, edges, at, position = [], [0], 0, 0
        for i in range(rng.integers(1, 6)):
            n = int(rng.integers(1, 9))
            if rng.random() < 0.5 or not i:
                parts.append(rng.integers(0, 100, n).astype(np.int32))
                position += n
            else:
                n_positions = int(rng.integers(1, n + 1))
                parts.append(media.cells(rng.bytes(8), n, n_positions))
                position += n_positions
            at += n
            edges.append(at)
        tokens = np.concatenate(parts)
        assert media.positions(tokens) == position
        assert all(media.is_cell(token) for token in tokens.tolist() if token < 0)
        for n in range(tokens.size + 1):
            inside = next((i for i, edge in enumerate(edges) if edge > n), len(edges)) - 1
            cut = inside < len(parts) and parts[inside][0] < 0 and edges[inside] < n
            assert media.whole_before(tokens, n) == (edges[inside] if cut else n)
            assert media.whole_after(tokens, n) == (edges[inside + 1] if cut else n)
        media_runs = [run for run in media.runs(tokens) if tokens[run[0]] < 0]
        assert media_runs == [(a, b) for a, b, p in zip(edges, edges[1:], parts, strict=False) if p[0] < 0]


def test_lookup_neither_crosses_a_picture_nor_guesses_one() -> None:
    picture = media.cells(b"picture", 6, 6)
    once = np.concatenate([np.array([1, 2, 3, 4], np.int32), picture, np.array([5, 6, 7], np.int32)])
    guesser = SuffixLookup()
    made = guesser.offer(np.concatenate([once, once[:2]]), 8)
    assert made.tokens[:2] == (3, 4) and min(made.tokens) >= 0
    made = SuffixLookup().offer(np.concatenate([once, picture, np.array([5], np.int32)]), 8)
    assert not made.tokens  # 5 came once after the picture, which counts as another each time


HEADS = (test_heads.mtp, test_heads.hybrid, test_heads.two_blocks)
HEADS += (test_heads.eagle, test_heads.dflash, test_heads.assistant)


@pytest.mark.sample(1)
@pytest.mark.parametrize("write", HEADS, ids=lambda write: write.__name__)
def test_heads_guess_behind_a_picture(
    write: Callable[[Path], tuple[Path, Path | None]], tmp_path: Path
) -> None:
    """They begin behind the last one; texts and seeds are those without."""
    target, head = write(tmp_path)
    width = read_file(target).of_architecture("embedding_length")
    projector = write_projector(tmp_path / "mmproj.gguf", "gemma3", width or 0)
    parts = (" the people", PICTURE, " the time", OTHER, " the people and the")
    texts: list[dict[str, list[int]]] = []
    for draws in (0, 4):
        with loaded((target, projector), head, slots=2, head=bool(draws)) as pair:
            tokens, held = prompt(pair, *parts)
            how = {"draft_length": draws, "drafter": "auto" if draws else "none"}
            asked = {"greedy": (tokens, replace(PLAIN, **how)), "seeded": (tokens, replace(SEEDED, **how))}
            engine = Engine(pair, slots=2)
            for _ in range(2):
                answer, drafted, _ = answered(engine, asked)
                texts.append(answer)
                assert bool(drafted) == bool(draws) and held
    assert texts[0] == texts[1] == texts[2] == texts[3]


def test_a_hybrid_goes_back_behind_a_picture(tmp_path: Path) -> None:
    """Its recurrent state is a checkpoint's, whose position follows from the cells before it."""
    target = write_hybrid(tmp_path / "hybrid.gguf")
    files = target, write_projector(tmp_path / "mmproj.gguf", "gemma3", 64)
    with loaded(files) as pair:
        tokens, held = prompt(pair, " the people", PICTURE, " the people and the people and the")
        right = [token for round_ in pair.generate(tokens, PLAIN) for token in round_.tokens]
        for drafter in ("lookup", "none"):
            request = replace(PLAIN, drafter=drafter, draft_length=4)
            for cut in (0, 3):
                generated = pair.generate(
                    np.append(tokens[: tokens.size - cut], tokens[tokens.size - cut :]), request
                )
                assert [token for round_ in generated for token in round_.tokens] == right
        assert held


def damaged(rng: np.random.Generator, whole: Sequence[bytes]) -> bytes:
    """Returns a picture, cut, mutated, with a piece doubled or another's middle."""
    file = bytearray(whole[rng.integers(len(whole))])
    at, n = int(rng.integers(len(file))), int(rng.integers(1, 40))
    match int(rng.integers(5)):
        case 0:
            del file[at:]
        case 1:
            del file[at : at + n]
        case 2:
            file[at : at + n] = rng.bytes(n)
        case 3:
            file[at:at] = file[max(0, at - n) : at] * 3
        case _:
            file[at:] = whole[rng.integers(len(whole))][at:]
    return bytes(file)


def pictures() -> list[bytes]:
    """Returns the same small picture in every format."""
    from io import BytesIO

    from PIL import Image

    found = []
    image = Image.open(BytesIO(png(64, 48)))
    for name, how in (
        ("PNG", {}),
        ("JPEG", {"exif": b"Exif\0\0MM\0*"}),
        ("WEBP", {}),
        ("GIF", {}),
        ("BMP", {}),
    ):
        file = BytesIO()
        image.save(file, name, **how)
        found.append(file.getvalue())
    return found


@pytest.mark.parametrize("n", [30, pytest.param(500, marks=pytest.mark.slow)])
def test_damaged_pictures_cost_a_sentence(n: int, tmp_path: Path) -> None:
    """No process ends, and memory stays where it was."""
    rng, whole = np.random.default_rng(n), pictures()
    target, projector = write_seeing(tmp_path, "gemma3")
    with MediaReader(projector, target, on_gpu=False) as reader:
        for file in whole:
            assert reader.pieces(Attachment("picture", file))
        [decoder], read = reader.decoder.started, 0
        for _ in range(n):
            try:
                read += bool(reader.pieces(Attachment("picture", damaged(rng, whole))))
            except SettingError as refused:
                assert str(refused).startswith("the picture ") and "\n" not in str(refused)
        assert reader.decoder.started == {decoder} and decoder.runs()
        assert psutil.Process(decoder.pid).memory_info().rss < 2**28
        assert 0 < read < n
        assert reader.pieces(PICTURE)


def test_a_picture_is_read_upright_and_a_huge_one_smaller(files: tuple[Path, Path]) -> None:
    from io import BytesIO

    from PIL import Image

    image = Image.new("RGB", (40, 20), (200, 10, 10))
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    turned, huge = BytesIO(), BytesIO()
    image.save(turned, "JPEG", exif=exif)
    Image.new("L", (9000, 30)).save(huge, "PNG")
    with MediaReader(files[1], files[0], on_gpu=False) as reader:
        assert reader.decoded(turned.getvalue()).startswith("20 40 ")
        assert reader.decoded(huge.getvalue()).startswith("4096 14 ")


@pytest.mark.slow
def test_run_reads_pictures(tmp_path: Path) -> None:
    """The one beside the target is found by itself."""
    target, _ = write_seeing(tmp_path, "gemma3")
    names = [tmp_path / f"{i}.png" for i in range(2)]
    for i, name in enumerate(names):
        name.write_bytes(png(64 + 32 * i, 64))
    words = [
        "run",
        "What is it?",
        "--target",
        str(target),
        "-n",
        "6",
        "--ctx",
        "256",
        "--json",
        "--temp",
        "0",
    ]
    for picture in names:
        words += ["--image", str(picture)]
    done = subprocess.run([sys.executable, "-m", "edgespec", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["prompt_tokens"] > 40
    refused = subprocess.run(
        [sys.executable, "-m", "edgespec", *words, "--mmproj", "none"], capture_output=True, text=True
    )
    assert "--image needs a projector" in refused.stderr and refused.stderr.count("\n") == 1


def test_sound_is_read_too(tmp_path: Path) -> None:
    """By a projector that hears; what is no sound, and a picture, is refused."""
    files = write_seeing(tmp_path, "ultravox")
    sound = Attachment("sound", wav())
    with loaded(files, n_ctx=1024) as pair:
        assert pair.reads == ("sound",)
        tokens, held = prompt(pair, " the people", sound, " the people and the")
        right = [token for round_ in pair.generate(tokens, PLAIN) for token in round_.tokens]
        request = replace(PLAIN, drafter="lookup", draft_length=4)
        assert [token for round_ in pair.generate(tokens, request) for token in round_.tokens] == right
        assert held and pair.media and pair.media.encoded == 1
        for data in (b"", b"RIFF", wav()[:30], wav().replace(b"WAVE", b"WEBP"), b"ID3" + bytes(900)):
            with pytest.raises(SettingError, match="^the sound "):
                pair.media_pieces(Attachment("sound", data))
        with pytest.raises(SettingError, match="reads no pictures"):
            pair.media_pieces(PICTURE)
        assert pair.media_pieces(sound)


@pytest.mark.slow
def test_damaged_sounds_cost_a_sentence(tmp_path: Path) -> None:
    """Or are heard as far as they go; their reader is C code, and stays alive."""
    rng, whole, n = np.random.default_rng(3), [wav(0.01), wav(0.004, 8000), wav(0.002, 44_100)], 150
    target, projector = write_seeing(tmp_path, "ultravox")
    with MediaReader(projector, target, on_gpu=False) as reader:
        encoder, read = reader.encoder._child, 0
        with pytest.raises(SettingError, match="^the sound is empty"):
            reader.pieces(Attachment("sound", wav(1 / 16_000)))
        for _ in range(n):
            try:
                read += bool(reader.pieces(Attachment("sound", damaged(rng, whole))))
            except SettingError as refused:
                assert str(refused).startswith("the sound ") and "\n" not in str(refused)
        assert reader.encoder._child is encoder and 0 < read < n
