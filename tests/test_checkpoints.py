"""Models that cannot go back in their text start at checkpoints: what is evaluated, and that it is right."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from served import served
from tiny_gguf import CONTROL, write_hybrid, write_llama, write_recurrent, write_sliding

from edgespec.chat.conversation import compose
from edgespec.core.media import cells
from edgespec.core.request import Request
from edgespec.core.values import Emitted, Failed, Started
from edgespec.engine.borders import FAR, LAST, NEAR, borders, token_places
from edgespec.engine.engine import Engine
from edgespec.engine.pair import Pair
from edgespec.engine.prompt_files import PromptFiles
from edgespec.engine.state_keys import state_keys
from edgespec.llama.saved import PrefixStore, Saved
from edgespec.pairs.settings import PairSettings
from edgespec.sampling.sampler import Sampling
from edgespec.server.pair_session import message_spans

Tokens = NDArray[np.int32]
KINDS = {"hybrid": write_hybrid, "recurrent": write_recurrent, "sliding": write_sliding}
NO_END = {token: -1e9 for token in range(512 - len(CONTROL), 512)}
SETTINGS = PairSettings(
    n_ctx=512, threads=1, slots=3, remember=False, flash_attention=False, cache_disk=10**8
)  # fmt: skip
RAM = 10**7


def text(seed: int, n: int) -> Tokens:
    return np.random.default_rng(seed).integers(0, 256, n).astype(np.int32)


SYSTEM, FIRST, ANSWER, LAST_TURN, OTHER = (text(i, n) for i, n in enumerate((150, 70, 20, 40, 30)))


def chat(*messages: Tokens) -> tuple[Tokens, tuple[int, ...]]:
    """Returns a prompt, and the places where its messages end."""
    return np.concatenate(messages), tuple(np.cumsum([message.size for message in messages]).tolist())


@pytest.fixture(scope="module", params=KINDS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("models")
    draft = write_recurrent(folder / "draft.gguf", seed=3) if request.param == "hybrid" else None
    with Pair(KINDS[request.param](folder / "target.gguf"), draft, SETTINGS) as pair:
        yield pair


def answer(engine: Engine, asked: tuple[Tokens, tuple[int, ...]], **how: object) -> tuple[int, list[int]]:
    """Returns how many tokens of a prompt were evaluated, and what the model wrote."""
    engine.submit("r", asked[0], wish(**how), asked[1])
    missing, written = 0, list[int]()
    while not engine.idle:
        for one in engine.step():
            assert not isinstance(one, Failed), one.error
            if isinstance(one, Started):
                missing = one.prompt_tokens - one.cached_tokens
            elif isinstance(one, Emitted):
                written += one.round.tokens
    return missing, written


def wish(**how: object) -> Request:
    return Request(Sampling(temperature=0, logit_bias=NO_END), 6, **how)  # type: ignore[arg-type]


def alone(pair: Pair, asked: tuple[Tokens, tuple[int, ...]]) -> list[int]:
    pair.forget()
    return answer(Engine(pair, slots=1), (asked[0], ()))[1]


TURNS = {  # prompt -> how many tokens are evaluated
    "first": (chat(SYSTEM, FIRST), 220),
    "goes on": (chat(SYSTEM, FIRST, ANSWER, LAST_TURN), 60),
    "last turn replaced": (chat(SYSTEM, FIRST, ANSWER, OTHER), 30),
    "answer dropped": (chat(SYSTEM, FIRST, OTHER), 30),
    "same preamble": (chat(SYSTEM, OTHER), 30),
    "another branch": (chat(SYSTEM, FIRST, ANSWER, LAST_TURN, OTHER), 160),
}


@pytest.mark.sample(1)
def test_what_differs_is_evaluated_and_no_more(pair: Pair) -> None:
    """A replaced last turn evaluated all 1,258 tokens, where attention evaluates that turn."""
    pair.forget()
    engine = Engine(pair, slots=3, cache_ram=RAM)
    found = {name: answer(engine, asked) for name, (asked, _) in TURNS.items()}
    for name, (asked, n) in TURNS.items():
        assert found[name][0] == n, name
        assert found[name][1] == alone(pair, asked), name


def test_texts_that_lost_their_slot_start_at_checkpoints_as_well(pair: Pair) -> None:
    pair.forget()
    engine = Engine(pair, slots=1, cache_ram=RAM)
    answer(engine, TURNS["goes on"][0])
    answer(engine, chat(text(9, 200), OTHER))
    missing, written = answer(engine, TURNS["last turn replaced"][0])
    assert missing == 30 and written == alone(pair, TURNS["last turn replaced"][0])


def test_requests_that_start_together_read_their_preamble_once(pair: Pair) -> None:
    asked = {str(i): chat(SYSTEM, text(20 + i, 30)) for i in range(3)}
    pair.forget()
    engine, context = Engine(pair, slots=3, cache_ram=RAM), pair.contexts["target"]
    before, written = context.evaluated, {id: list[int]() for id in asked}
    for id, (prompt, places) in asked.items():
        engine.submit(id, prompt, wish(drafter="none"), places)
    while not engine.idle:
        for one in engine.step():
            if isinstance(one, Emitted):
                written[one.id] += one.round.tokens
    assert context.evaluated - before <= SYSTEM.size + 3 * (30 + 6)
    assert written == {id: alone(pair, one) for id, one in asked.items()}


def test_the_next_program_finds_checkpoints_on_disk(pair: Pair, tmp_path: Path) -> None:
    def started() -> tuple[Engine, PromptFiles]:
        pair.forget()
        files = PromptFiles(tmp_path, 10**8, state_keys(pair.contexts))
        files.wait(10.0)
        return Engine(pair, slots=1, cache_ram=RAM, files=files), files

    engine, files = started()
    answer(engine, TURNS["goes on"][0])
    while engine.prefixes.write_some():
        time.sleep(0.001)
    files.close(10.0)
    engine, files = started()
    asked = TURNS["same preamble"][0]
    missing, written = answer(engine, asked)
    files.close(10.0)
    for path in tmp_path.glob("*.state"):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    engine, files = started()
    damaged = answer(engine, asked)
    files.close(10.0)
    assert (missing, damaged[0]) == (30, 180)
    assert written == damaged[1] == alone(pair, asked)


@pytest.mark.parametrize("other", ["model", "build"])
def test_states_of_another_model_or_build_are_not_used(
    other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model's file is replaced under its name, or llama.cpp is compiled anew."""

    def asked(turn: str) -> tuple[int, list[int]]:
        with Pair(tmp_path / "t.gguf", None, SETTINGS) as pair:
            files = PromptFiles(tmp_path / "prompts", 10**8, state_keys(pair.contexts))
            files.wait(10.0)
            engine = Engine(pair, slots=1, cache_ram=RAM, files=files)
            found = answer(engine, TURNS[turn][0])
            while engine.prefixes.write_some():
                time.sleep(0.001)
            files.close(10.0)
            assert found[1] == alone(pair, TURNS[turn][0])
            return found

    write_hybrid(tmp_path / "t.gguf")
    first = asked("goes on")
    assert asked("same preamble")[0] == 30
    if other == "model":
        write_hybrid(tmp_path / "new.gguf", seed=8).replace(tmp_path / "t.gguf")
    else:
        (tmp_path / "libllama.so").touch()
        monkeypatch.setenv("LLAMA_CPP_LIB_PATH", str(tmp_path))
    missing, written = asked("goes on")
    assert missing == TURNS["goes on"][0][0].size
    assert (written != first[1]) == (other == "model")


def test_a_reproducible_answer_uses_none(pair: Pair) -> None:
    """What was evaluated in other company differs in last digits."""
    pair.forget()
    engine = Engine(pair, slots=1, cache_ram=RAM)
    answer(engine, TURNS["goes on"][0])
    assert answer(engine, TURNS["same preamble"][0], fresh=True)[0] == 180
    assert answer(engine, chat(SYSTEM, ANSWER))[0] == 20, "the next one does"


def test_without_host_memory_there_are_none(pair: Pair) -> None:
    pair.forget()
    engine = Engine(pair, slots=1)
    answer(engine, TURNS["goes on"][0])
    assert answer(engine, chat(SYSTEM, OTHER))[0] in (30, 180)
    assert pair.contexts["target"].checkpoints and not pair.contexts["target"].checkpoints.within(b"")


def test_attention_alone_needs_none(tmp_path: Path) -> None:
    with Pair(write_llama(tmp_path / "t.gguf"), None, SETTINGS) as pair:
        assert pair.contexts["target"].checkpoints is None


WORDS_ALONE = "{% for m in messages %}### {{ m.role }}:\n{{ m.content }}\n\n{% endfor %}### assistant:\n"


@pytest.mark.parametrize("template", ["", pytest.param(WORDS_ALONE, marks=pytest.mark.slow)])
def test_a_hybrid_model_is_served_with_checkpoints(template: str, tmp_path: Path) -> None:
    """From a conversation to the places where its prompt is cut, through the worker.

    Without control tokens between messages there were none before 8,192 tokens.
    """
    system = {"role": "system", "content": 80 * "abc def ghi "}
    turns = [{"role": role, "content": 20 * f"{word} "} for role, word in (("user", "one"), ("user", "two"))]
    flags = (
        "--slots",
        "1",
        "--ctx",
        "4096",
        "--no-draft",
        "--target",
        str(write_hybrid(tmp_path / "t.gguf")),
    )
    if template:
        (tmp_path / "words.jinja").write_text(template)
        flags += ("--chat-template-file", str(tmp_path / "words.jinja"))
    with served(tmp_path, *flags) as server:
        found = []
        for turn in turns:
            body = {"messages": [system, turn], "max_tokens": 2, "temperature": 0}
            found.append(server.ask("/v1/chat/completions", body).json)
    first, second = (one["timings"] for one in found)
    assert first["cache_n"] == 0 and second["cached_from"] == {"checkpoint": second["cache_n"]}
    assert second["prompt_n"] < 120 and second["cache_n"] > 400


# ---- the places ------------------------------------------------------------------------------------------


def places(n: int, *control: int) -> tuple[int, ...]:
    prompt = np.zeros(n, np.int32)
    prompt[list(control)] = 1
    return borders(prompt, np.array([False, True]))


def test_places_are_ends_of_messages_and_not_too_many() -> None:
    assert places(3000, 0, 700, 710, 1100, 1500, 2950, 2990) == (700, 1500, 2950, 2990)
    assert places(3000, 0, 700, 2980, 2990) == (700, 2980), "the first of what ends the last message"
    assert places(1000) == (996,), "a text without messages, answered again"
    assert places(40, 10, 30) == (10,)
    assert borders(np.array([7] * 9, np.int32), np.array([True])) == (5,), "a token that does not exist"
    assert places(20_000, 0, 19_990) == (FAR, 2 * FAR, 19_990)
    assert NEAR < FAR and LAST < NEAR


def test_without_control_tokens_places_are_where_the_texts_of_messages_begin_and_end() -> None:
    """A start token or a space precedes the text, a token may lie across a place, a letter has 2 bytes."""
    text = "# user: Grüße\n# assistant: yes\n"
    spans = message_spans(text, ["Grüße", "", "yes ", "never sent"])
    assert spans == ((8, 13), (13, 13), (27, 30), (30, 30))
    tokens = ["<s>", "# user:", " Gr", "ü", "ße", "\n", "# assistant", ":", " ", "yes", "\n"]
    sizes = [len(token.encode()) for token in tokens]
    assert token_places(sizes, text, spans) == [2, 5, 9, 10]
    assert token_places([5 for _ in range(9)], 45 * "x", [(10, 12), (44, 45)]) == [2, 2, 8, 9]
    prompt = np.zeros(2000, np.int32)
    assert borders(prompt, np.array([False]), [900, 950, 1990, 1995]) == (900, 1990)


@pytest.mark.slow
def test_in_every_template_a_turn_that_differs_costs_itself_and_512_tokens(test_data: Path) -> None:
    """Even if no token of the vocabulary is a control token: here each byte is one of its own."""
    long = [(role, f"{role} {i} " + 700 * f"{i}") for i, role in enumerate(("user", "assistant", "user"))]
    turns = [{"role": role, "content": content} for role, content in (("system", 3000 * "s"), *long)]
    changes = {
        "last turn": [*turns[:-1], {"role": "user", "content": "another"}],
        "answer dropped": [*turns[:2], turns[3]],
        "preamble": [turns[0], {"role": "user", "content": "another"}],
    }
    for path in sorted((test_data / "templates").glob("*.jinja")):
        template = path.read_text()
        for name, changed in changes.items():
            first, second = (compose(template, said).text for said in (turns, changed))
            spans = message_spans(first, [one["content"] for one in turns])
            n = len(os.path.commonprefix([first.encode(), second.encode()]))
            sizes = np.ones(len(first.encode()), np.int32)
            places = borders(0 * sizes, np.array([False]), token_places(sizes.tolist(), first, spans))
            back = n - max((place for place in places if place <= n), default=0)
            assert back <= NEAR + 64, (path.name, name, back, places)


def test_no_place_is_within_a_picture() -> None:
    picture = cells(b"x", 200, 200)
    prompt = np.concatenate([np.zeros(FAR - 100, np.int32), picture, np.zeros(2000, np.int32)])
    assert borders(prompt, np.array([False])) == (FAR - 100, prompt.size - 4)


# ---- the store -------------------------------------------------------------------------------------------


def checkpoint(n: int, size: int = 1000) -> Saved:
    return Saved(text(1, n).tobytes(), np.zeros(size - 4 * n, np.uint8), n)


def test_where_memory_is_short_checkpoints_are_thinned_out() -> None:
    """Each spares what lies behind the one before, and what that one spared goes to the next."""
    store = PrefixStore(6000)
    for n in range(10, 130, 10):
        store.put_checkpoint("target", checkpoint(n))
        assert store.n_bytes <= store.budget
    kept = [one.n_tokens for one in store.checkpoints("target", text(1, 200).tobytes())]
    gaps = np.diff([0, *kept])
    assert len(kept) == 6 and gaps.max() <= 40, kept


def test_a_checkpoint_and_a_text_share_one_budget() -> None:
    store = PrefixStore(3000)
    store.put({"target": Saved(text(2, 500).tobytes(), np.zeros(100, np.uint8), 500)})
    assert store.takes(750) and not store.takes(751)
    store.put_checkpoint("target", checkpoint(10))
    assert store.best(text(2, 501).tobytes())[1] == 500, "which spares more for its bytes"
    assert not store.checkpoints("target", text(1, 10).tobytes()) or store.n_bytes <= 3000
