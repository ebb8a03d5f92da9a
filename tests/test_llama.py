"""Models: text to tokens and back, a file's own facts, and files that are not models.

Whatever llama.cpp might abort on is loaded in a child process, so that a fault fails one test.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import tiny_gguf
from gguf import GGUFWriter
from numpy.typing import NDArray

from edgespec.core.loop import Want
from edgespec.errors import ModelFileError, ModelUnsupportedError, SettingError
from edgespec.llama.context import Context, ContextSettings
from edgespec.llama.deep_stack import on_a_deep_stack
from edgespec.llama.log import keep_log
from edgespec.llama.model import C, Model
from edgespec.pairs.check import check_pair

TEXTS = {
    "ascii": "def main():\n    return [x for x in range(10) if x % 2]\n",
    "spaces": "  two\t\ttabs \n\n\n and   an end   ",
    "accents": "naïve café, Ærøskøbing, Škoda, İstanbul",
    "greek and cyrillic": "Καλημέρα κόσμε, здравствуй, мир",
    "han, kana, hangul": "日本語のテキスト、漢字 中文 한국어",
    "right to left": "שלום עולם مرحبا بالعالم",
    "indic": "नमस्ते दुनिया ภาษาไทย",
    "emoji": "🙂 👩‍👩‍👧‍👦 🇮🇸 e\u0301",
    "numbers": "3.14159 1234567890 0x7f",
    "nul": "before\x00after\x00\x00",
    "controls": "\x01\x02\x1b[0m\x7f",
}

LOAD = """
import json, sys
from edgespec.errors import EdgeSpecError
from edgespec.llama.model import Model
for path in sys.argv[1:]:
    try:
        Model(path).close()
        answer = ["loaded", ""]
    except EdgeSpecError as error:
        answer = [type(error).__name__, str(error)]
    print(json.dumps(answer), flush=True)
"""


def load_in_child(paths: Sequence[Path]) -> list[tuple[str, str]]:
    """Loads each file in one child process; returns (error class or "loaded", message) of each."""
    command = [sys.executable, "-c", LOAD, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, timeout=120)
    answers = [tuple(json.loads(line)) for line in done.stdout.splitlines()]
    died = paths[len(answers)].name if len(answers) < len(paths) else "after the last"
    assert done.returncode == 0, f"the child ended with {done.returncode} at {died}: {done.stderr[-500:]!r}"
    return answers


def is_one_sentence(message: str, *, names: str = "") -> bool:
    return bool(message) and "\n" not in message and names in message and "Traceback" not in message


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def path(folder: Path) -> Path:
    return tiny_gguf.write_llama(folder / "plain.gguf")


@pytest.fixture(scope="module")
def model(path: Path) -> Iterator[Model]:
    with Model(path) as model:
        yield model


# ---- text and tokens --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TEXTS)
def test_text_comes_back_byte_for_byte(model: Model, name: str) -> None:
    text = TEXTS[name].encode()
    for special in (False, True):
        assert model.detokenize(model.tokenize(text, special=special)) == text


def test_random_unicode_comes_back_byte_for_byte(model: Model) -> None:
    rng = np.random.default_rng(5)
    for _ in range(200):
        points = rng.integers(0, 0x2FFFF, rng.integers(0, 30))
        text = "".join(chr(p) for p in points if not 0xD800 <= p < 0xE000).encode()
        assert model.detokenize(model.tokenize(text, special=False)) == text


def test_a_long_text_comes_back_and_needs_fewer_tokens_than_bytes(model: Model) -> None:
    text = ("the people would make some time for other words " * 4000).encode()
    ids = model.tokenize(text, special=False)
    assert model.detokenize(ids) == text
    assert ids.size < len(text) / 2  # words are tokens: the merges work
    assert ids.dtype == np.int32


def test_nothing_is_no_tokens(model: Model) -> None:
    assert model.tokenize(b"", special=False).size == 0
    assert model.detokenize([]) == b""


def test_bytes_that_are_no_utf8_become_tokens_all_the_same(model: Model) -> None:
    for text in (b"\xff\xfe", b"caf\xc3", b"\x80" * 100):
        ids = model.tokenize(text, special=False)
        assert ids.size > 0
        assert int(ids.max()) < model.n_vocab


def test_every_byte_has_a_token_with_that_byte(model: Model) -> None:
    letters = {model.piece(i) for i in range(256)}
    assert letters == {bytes([b]) for b in range(256)}


def test_control_tokens_are_parsed_only_where_that_is_asked_for(model: Model) -> None:
    text = (tiny_gguf.TURN + "user\nhi" + tiny_gguf.EOS).encode()
    asked, plain = model.tokenize(text, special=True), model.tokenize(text, special=False)
    turn = model.vocabulary.texts.index(tiny_gguf.TURN.encode())
    assert asked[0] == turn
    assert asked[-1] == model.vocabulary.eos
    assert not {turn, model.vocabulary.eos} & set(plain.tolist())  # a user cannot write a control token
    assert model.detokenize(plain) == text


def test_control_tokens_are_silent_unless_shown(model: Model) -> None:
    eos = model.vocabulary.eos
    assert model.piece(eos) == b""
    assert model.piece(eos, special=True) == tiny_gguf.EOS.encode()
    assert model.detokenize([72, eos, 73], special=True) == (
        model.piece(72) + tiny_gguf.EOS.encode() + model.piece(73)
    )


def test_a_piece_longer_than_the_first_buffer_is_whole(folder: Path) -> None:
    long = "x" * 500
    vocabulary = tiny_gguf.altered(tiny_gguf.make_vocabulary(), texts={500: long})
    with Model(tiny_gguf.write_llama(folder / "long-piece.gguf", vocab=vocabulary)) as model:
        assert model.piece(500) == long.encode()


@pytest.mark.parametrize("token", [-1, 512, 2**31 - 1, -(2**31)])
def test_a_token_that_does_not_exist_is_refused(model: Model, token: int) -> None:
    with pytest.raises(SettingError, match=f"token {token} does not exist"):
        model.piece(token)


@pytest.mark.parametrize("wanted", [True, False])
def test_the_start_token_is_put_in_front_where_the_model_wants_it(folder: Path, wanted: bool) -> None:
    path = tiny_gguf.write_llama(
        folder / f"bos-{wanted}.gguf", metadata={"tokenizer.ggml.add_bos_token": wanted}
    )
    with Model(path) as model:
        bos = model.vocabulary.bos
        assert (model.tokenize(b"hello", special=False)[0] == bos) == wanted
        assert model.tokenize(b"hello", special=False, add_bos=False)[0] != bos
        assert model.vocabulary.add_bos == wanted


# ---- what the file says -----------------------------------------------------------------------------------


def test_a_long_chat_template_is_whole(folder: Path) -> None:
    template = "{# Größe #}" + "{{ 'é日本🙂' }}\n" * 20_000
    with Model(tiny_gguf.write_llama(folder / "template.gguf", chat_template=template)) as model:
        assert model.chat_template == template


def test_a_file_without_template_or_name_says_so(folder: Path) -> None:
    with Model(tiny_gguf.write_llama(folder / "bare.gguf", chat_template=None)) as model:
        assert model.chat_template is None


def test_metadata_is_read_as_text(folder: Path) -> None:
    extra = {"general.sampling.temp": 0.25, "general.sampling.top_k": 7, "x.flag": True, "x.text": "ü" * 300}
    with Model(tiny_gguf.write_llama(folder / "meta.gguf", metadata=extra)) as model:
        assert float(model.metadata["general.sampling.temp"]) == 0.25
        assert model.metadata["general.sampling.top_k"] == "7"
        assert model.metadata["x.flag"] == "true"
        assert model.metadata["x.text"] == "ü" * 300


def test_the_facts_of_a_model(model: Model, path: Path) -> None:
    assert model.architecture == "llama"
    assert model.name == "tiny random llama"
    assert model.n_vocab == 512
    assert model.n_ctx_train == 512
    assert (model.bos_text, model.eos_text) == (tiny_gguf.BOS, tiny_gguf.EOS)
    assert model.vocabulary.kind == "BPE"
    assert model.vocabulary.texts[model.vocabulary.eos] == tiny_gguf.EOS.encode()


def test_end_tokens_hold_the_end_of_turn_and_no_word(model: Model) -> None:
    texts = {model.vocabulary.texts[i].decode() for i in model.end_tokens}
    assert tiny_gguf.EOS in texts
    assert texts <= set(tiny_gguf.CONTROL)
    assert tiny_gguf.TURN not in texts


def test_recurrent_state_is_known_at_load(model: Model, folder: Path) -> None:
    assert not model.has_recurrent_state
    for write in (tiny_gguf.write_hybrid, tiny_gguf.write_recurrent):
        with Model(write(folder / f"{write.__name__}.gguf")) as other:
            assert other.has_recurrent_state


# ---- files that are not models -----------------------------------------------------------------------------


def write_t5_encoder(path: Path) -> Path:
    """Writes the vocabulary and sizes of a T5 encoder, enough for a load of the vocabulary."""
    writer = GGUFWriter(path, "t5encoder")
    writer.add_context_length(512)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(128)
    writer.add_block_count(1)
    writer.add_head_count(4)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_relative_attn_buckets_count(32)
    _add_words_and_finish(writer)
    return path


def write_bert(path: Path) -> Path:
    """Writes the vocabulary and sizes of a BERT."""
    writer = GGUFWriter(path, "bert")
    writer.add_context_length(512)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(128)
    writer.add_block_count(1)
    writer.add_head_count(4)
    writer.add_layer_norm_eps(1e-6)
    writer.add_causal_attention(False)
    _add_words_and_finish(writer)
    return path


def _add_words_and_finish(writer: GGUFWriter) -> None:
    vocabulary = tiny_gguf.make_vocabulary()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(vocabulary.texts)
    writer.add_token_types(vocabulary.types)
    writer.add_token_merges(vocabulary.merges)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


@pytest.mark.sample(6)
@pytest.mark.parametrize(
    "content, expected",
    [
        (b"", "is empty"),
        (b"G", "is not a GGUF"),
        (b"GGUF", "is not a GGUF"),
        (b"GGUF\x03\x00\x00\x00", "cannot load"),
        (b"GGML\x03\x00\x00\x00" + b"\x00" * 100, "is not a GGUF"),
        (b"GGUF\x00\x00\x00\x03" + b"\x00" * 100, "big-endian"),
        (b"GGUF\xff\xff\xff\xff" + b"\x00" * 100, "of version 4294967295"),
        (b"PK\x03\x04" + b"\x00" * 1000, "is not a GGUF"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "is not a GGUF"),
        (b"GGUF\x03\x00\x00\x00" + b"\xff" * 4096, "cannot load"),
        (b"GGUF\x03\x00\x00\x00" + b"\x00" * 4096, "cannot load"),
    ],
)
def test_a_file_that_is_no_model_is_refused_in_one_sentence(
    tmp_path: Path, content: bytes, expected: str
) -> None:
    wrong = tmp_path / "wrong.gguf"
    wrong.write_bytes(content)
    [(kind, message)] = load_in_child([wrong])
    assert kind == "ModelFileError"
    assert expected in message
    assert is_one_sentence(message, names="wrong.gguf")


def test_garbage_behind_a_true_header_is_refused(tmp_path: Path) -> None:
    rng = np.random.default_rng(11)
    files = []
    for i in range(10):
        files.append(tmp_path / f"garbage-{i}.gguf")
        files[-1].write_bytes(b"GGUF\x03\x00\x00\x00" + rng.bytes(int(rng.integers(1, 20_000))))
    answers = load_in_child(files)
    assert {kind for kind, _ in answers} == {"ModelFileError"}
    assert all(
        is_one_sentence(message, names=file.name) for (_, message), file in zip(answers, files, strict=True)
    )


def test_a_truncated_model_is_refused_wherever_it_was_cut(path: Path, tmp_path: Path) -> None:
    whole = path.read_bytes()
    rng = np.random.default_rng(7)
    lengths = sorted({9, 16, 24, 25, 31, 100, len(whole) - 1, *rng.integers(8, len(whole), 40).tolist()})
    cut = [tmp_path / f"cut-{length}.gguf" for length in lengths]
    for file, length in zip(cut, lengths, strict=True):
        file.write_bytes(whole[:length])
    answers = load_in_child(cut)
    assert {kind for kind, _ in answers} == {"ModelFileError"}
    assert all(
        is_one_sentence(message, names=file.name) for (_, message), file in zip(answers, cut, strict=True)
    )


def test_missing_file_and_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="there is no file .*nowhere.gguf"):
        Model(tmp_path / "nowhere.gguf")
    with pytest.raises(ModelFileError, match="is a folder"):
        Model(tmp_path)
    with pytest.raises(ModelFileError):
        Model(tmp_path / ("long" * 1000))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes on this system")
def test_a_named_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    [(kind, message)] = load_in_child([tmp_path / "pipe.gguf"])
    assert kind == "ModelFileError"
    assert is_one_sentence(message, names="pipe.gguf")


def test_a_model_without_vocabulary_is_refused(folder: Path) -> None:
    path = tiny_gguf.write_llama(folder / "no-vocabulary.gguf", vocab="none")
    for vocab_only in (False, True):
        with pytest.raises(ModelUnsupportedError, match="no-vocabulary.gguf has no vocabulary"):
            Model(path, vocab_only=vocab_only)


def test_models_that_do_not_generate_are_refused(folder: Path) -> None:
    with pytest.raises(ModelUnsupportedError, match="is an encoder model"):
        Model(write_t5_encoder(folder / "t5.gguf"), vocab_only=True)
    with pytest.raises(ModelUnsupportedError, match="is an embedding model"):
        Model(write_bert(folder / "bert.gguf"), vocab_only=True)
    two_way = tiny_gguf.write_llama(folder / "two-way.gguf", metadata={"llama.attention.causal": False})
    with pytest.raises(ModelUnsupportedError, match="is an embedding model"):
        Model(two_way)


def test_a_vocabulary_without_weights_is_no_model(folder: Path) -> None:
    path = write_bert(folder / "weightless.gguf")
    [(kind, message)] = load_in_child([path])
    assert kind in ("ModelFileError", "ModelUnsupportedError")
    assert is_one_sentence(message, names="weightless.gguf")


def test_an_unknown_architecture_is_named(folder: Path) -> None:
    writer = GGUFWriter(folder / "future.gguf", "hovercraft")
    _add_words_and_finish(writer)
    [(kind, message)] = load_in_child([folder / "future.gguf"])
    assert kind == "ModelFileError"
    assert "hovercraft" in message


@pytest.mark.parametrize("n", [-2, 10_001, 1.5, "all", None])
def test_nonsense_gpu_layers_are_refused(path: Path, n: object) -> None:
    with pytest.raises(SettingError, match="n_gpu_layers"):
        Model(path, n_gpu_layers=n)  # type: ignore[arg-type]


def test_a_closed_model_says_so(path: Path) -> None:
    model = Model(path)
    model.close()
    model.close()
    with pytest.raises(SettingError, match="has been closed"):
        model.n_ctx_train  # noqa: B018
    with pytest.raises(SettingError, match="has been closed"):
        Context(model, ContextSettings(n_ctx=16))


CLOSED = """
import sys
from edgespec.errors import SettingError
from edgespec.llama.model import Model
model = Model(sys.argv[1])
model.close()
for ask in (
    lambda: model.tokenize(b"hello", special=False),
    lambda: model.piece(300),
    lambda: model.vocabulary,
    lambda: model.end_tokens,
):
    try:
        ask()
    except SettingError as error:
        assert "has been closed" in str(error)
    else:
        sys.exit("a closed model answered")
"""


def test_the_vocabulary_of_a_closed_model_is_not_touched(path: Path) -> None:
    """llama.cpp frees the vocabulary with the model: a question after that ended the process."""
    done = subprocess.run([sys.executable, "-c", CLOSED, str(path)], capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr[-500:]


# ---- llama.cpp is silent ----------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def our_log() -> None:
    """Another file's tests may have turned the log elsewhere (the recipes have a callback of their own)."""
    C.llama_log_set(keep_log, None)


def use(path: Path) -> None:
    with Model(path) as model, Context(model, ContextSettings(n_ctx=64, threads=1)) as context:
        context.score([Want(model.tokenize(b"hello world", special=False))])


def test_nothing_is_printed_at_load_and_decode(
    path: Path, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    use(path)
    with pytest.raises(ModelFileError):
        Model(write_cut(path, folder / "cut.gguf"))
    assert capfd.readouterr() == ("", "")


def test_the_log_is_shown_where_it_is_asked_for(
    path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGESPEC_LOG", "1")
    use(path)
    out, err = capfd.readouterr()
    assert out == ""
    assert "llama" in err


def write_cut(path: Path, to: Path) -> Path:
    to.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return to


def test_the_reason_llama_cpp_gave_is_quoted(path: Path, folder: Path) -> None:
    with pytest.raises(ModelFileError, match=r"tensor .* out of bounds|corrupted or incomplete|not within"):
        Model(write_cut(path, folder / "half.gguf"))


# ---- real vocabularies ------------------------------------------------------------------------------------

VOCABULARIES = ("gpt-2", "llama-bpe", "llama-spm", "phi-3", "qwen2", "deepseek-coder")


@pytest.fixture(scope="module")
def vocabulary_of(test_data: Path) -> Iterator[dict[str, Path]]:
    files = {name: test_data / "vocab" / f"ggml-vocab-{name}.gguf" for name in VOCABULARIES}
    missing = [str(file) for file in files.values() if not file.is_file()]
    if missing:
        pytest.skip(f"test data is incomplete: {', '.join(missing)}")
    yield files


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", VOCABULARIES)
def test_real_vocabularies_bring_text_of_every_script_back(vocabulary_of: dict[str, Path], name: str) -> None:
    with Model(vocabulary_of[name], vocab_only=True) as model:
        spm = model.vocabulary.kind == "SPM"  # puts a space in front
        for text in TEXTS.values():
            back = model.detokenize(model.tokenize(text.encode(), special=False, add_bos=False))
            assert back == (b" " if spm else b"") + text.encode()
        assert model.end_tokens


@pytest.mark.slow
def test_real_vocabularies_draft_for_each_other(vocabulary_of: dict[str, Path]) -> None:
    """The least that any of these has of another's tokens is more than guesses need to pay."""
    for target, draft in itertools.pairwise((*VOCABULARIES, VOCABULARIES[0])):
        check_pair(vocabulary_of[target], vocabulary_of[draft])
    check_pair(vocabulary_of["llama-bpe"], vocabulary_of["deepseek-coder"])


def test_no_end_token_is_put_behind_a_prompt(folder: Path) -> None:
    """Where a model asks for an automatic end token, the prompt used to end in one, and so did the answer."""
    facts = {"tokenizer.ggml.add_eos_token": True, "tokenizer.ggml.add_bos_token": True}
    with Model(tiny_gguf.write_llama(folder / "eos.gguf", metadata=facts)) as model:
        tokens = model.tokenize(b"hello", special=False)
        assert model.vocabulary.add_eos
        assert tokens[0] == model.vocabulary.bos
        assert tokens[-1] != model.vocabulary.eos
        assert model.detokenize(tokens) == b"hello"


DEEP = """
import sys
import edgespec.llama.model
edgespec.llama.model.LONG_TEXT = int(sys.argv[2])
with edgespec.llama.model.Model(sys.argv[1]) as model:
    print(len(model.tokenize(b"a" * 300_000, special=False)))
"""


@pytest.mark.skipif(os.name != "posix", reason="deaths by signal are told as POSIX tells them")
@pytest.mark.parametrize(("threshold", "dies"), [(1000, False), (10**9, True)])
def test_a_long_unbroken_text_gets_a_stack_deep_enough(threshold: int, dies: bool, folder: Path) -> None:
    """A pasted blob of base64 ended the process for models with this tokeniser."""
    path = tiny_gguf.write_llama(folder / "deep.gguf", metadata={"tokenizer.ggml.pre": "deepseek-llm"})
    command = [sys.executable, "-c", DEEP, str(path), str(threshold)]
    done = subprocess.run(command, capture_output=True, timeout=60)
    if dies and done.returncode == 0:
        pytest.skip("this C++ library matches long text without a deep stack (GCC 16's does)")
    assert (done.returncode < 0) == dies
    assert dies or done.stdout.strip() == b"300000"


def test_two_long_texts_at_once_leave_the_size_of_stacks_as_it_was() -> None:
    """The one that ended last put back what the other had set: a later thread's stack could be too small."""
    before, began, ended = threading.stack_size(), threading.Event(), threading.Event()
    sizes = []

    def first() -> NDArray[np.int32]:
        began.wait(5)
        return np.empty(0, np.int32)

    def second() -> NDArray[np.int32]:
        began.set()
        ended.wait(5)
        return np.empty(0, np.int32)

    try:
        threading.stack_size(2**26)
        one = threading.Thread(target=lambda: (on_a_deep_stack(first, 2000), ended.set()))
        one.start()
        on_a_deep_stack(second, 3000)
        one.join()
        sizes.append(threading.stack_size())
    finally:
        threading.stack_size(before)
    assert sizes == [2**26]
