"""Pictures as the clients of every dialect send them: read, remembered, and refused in a sentence."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from late import anthropic, ollama, openai
from served import Served, served
from tiny_projector import encoded, message, png, url, write_projector
from tui_driver import driven

from edgespec.errors import ModelUnsupportedError
from edgespec.llama.projector import mtmd_cpp
from edgespec_models import tiny
from edgespec_tui.app import ChatApp
from edgespec_tui.endpoint.attached import AttachedEndpoint, connecting
from edgespec_tui.settings.settings import Settings

pytest.importorskip("PIL")
try:
    mtmd_cpp()
except ModelUnsupportedError as missing:
    pytest.skip(str(missing), allow_module_level=True)

TEXT = "What colour is it?"
BLUE = (20, 90, 200)
HOW = {"temperature": 0, "seed": 1, "max_tokens": 12}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Its projector is the one beside the embedded target, which sees."""
    with served(tmp_path_factory.mktemp("seeing"), "--slots", "2") as server:
        yield server


def test_all_dialects_send_the_same_picture(server: Served) -> None:
    """Each client's own way leads to the same prompt, which is read once."""
    model = "embedded"
    with openai.OpenAI(base_url=server.url, api_key="none") as client:
        first = client.chat.completions.create(model=model, messages=message(TEXT, png()), **HOW)
        again = client.chat.completions.create(model=model, messages=message(TEXT, png()), **HOW)
        parts = [{"type": "input_image", "image_url": url(png())}, {"type": "input_text", "text": TEXT}]
        answer = client.responses.create(
            model=model, input=[{"role": "user", "content": parts}], max_output_tokens=12, temperature=0
        )
    text = first.choices[0].message.content
    assert text == again.choices[0].message.content == answer.output_text == "The colour is red."
    assert again.usage.prompt_tokens_details.cached_tokens >= again.usage.prompt_tokens - 16 - len(TEXT)
    with anthropic.Anthropic(base_url=server.url.removesuffix("/v1"), api_key="none") as client:
        source = {"type": "base64", "media_type": "image/png", "data": encoded(png())}
        content = [{"type": "image", "source": source}, {"type": "text", "text": TEXT}]
        asked = {"model": model, "messages": [{"role": "user", "content": content}]}
        reply = client.messages.create(**asked, max_tokens=12, extra_body={"temperature": 0})
        counted = client.messages.count_tokens(**asked)
    assert reply.content[0].text == text
    assert counted.input_tokens == first.usage.prompt_tokens
    options = {"temperature": 0, "num_predict": 12}
    turn = {"role": "user", "content": TEXT, "images": [encoded(png())]}
    with ollama.Client(server.url.removesuffix("/v1")) as client:
        assert client.chat(model, messages=[turn], options=options).message.content == text
        assert client.generate(model, prompt=TEXT, images=[encoded(png())], options=options).response == text


def test_the_chat_is_reported_the_colour(
    server: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("seen.png").write_bytes(png(colour=BLUE))

    async def talk() -> None:
        app = ChatApp(
            AttachedEndpoint(connecting(server.url, None)), settings=Settings(sampling={"temperature": 0.0})
        )
        async with driven(app) as it:
            await it.ask(f"{TEXT} @seen.png")
            assert it.texts()[1] == "The colour is blue."

    asyncio.run(talk())


def test_the_next_turn_reads_no_picture_again(server: Served) -> None:
    """What is cached goes on behind the picture of the first turn, and its answer."""
    asked = [*message(TEXT, png(colour=BLUE))]
    for _ in range(2):
        answer = server.ask("/v1/chat/completions", {"messages": asked, **HOW}).json
        reply, usage = answer["choices"][0]["message"], answer["usage"]
        asked += [{"role": "assistant", "content": reply["content"]}, {"role": "user", "content": TEXT}]
        if len(asked) == 3:
            before = usage["total_tokens"]
    assert usage["prompt_tokens_details"]["cached_tokens"] >= before - 2


def test_clients_are_reported_that_it_sees(server: Served) -> None:
    """Some send no picture to a model that is not said to see."""
    assert "vision" in server.ask("/api/show", {"model": "embedded"}).json["capabilities"]
    assert server.ask("/v1/models").json["models"][0]["capabilities"] == ["completion", "multimodal"]


def test_llama_servers_own_way(server: Served) -> None:
    props = server.ask("/props").json
    assert props["modalities"] == {"vision": True, "audio": False, "video": False}
    texts = []
    for marker in (props["media_marker"], "<__media__>"):
        prompt = {"prompt_string": f"Look: {marker} {TEXT}", "multimodal_data": [encoded(png())]}
        answer = server.ask("/completion", {"prompt": prompt, "n_predict": 8, "temperature": 0}).json
        texts.append(answer["content"])
        assert answer["tokens_evaluated"] > 16
    assert texts[0] == texts[1]
    prompt = {"prompt_string": "Look: <__media__>", "multimodal_data": [encoded(png())] * 2}
    refused = server.ask("/completion", {"prompt": prompt})
    assert refused.status == 400 and "2 files for 1 marks" in refused.error["message"]


def test_guesses_go_on_behind_a_picture(server: Served) -> None:
    """A draft and lookup guess, and the text is the one without them."""
    asked = {
        "messages": message("def first(x):\n    return x\n\ndef first(x):", png(), png(64, 64)),
        **HOW,
    }
    asked["max_tokens"] = 48
    plain = server.ask("/v1/chat/completions", {**asked, "edgespec": {"speculation": False}}).json
    for how in ({"drafter": "model", "draft_length": 4}, {"drafter": "lookup", "draft_length": 4}, {}):
        answer = server.ask("/v1/chat/completions", {**asked, "edgespec": how}).json
        assert answer["choices"][0]["message"] == plain["choices"][0]["message"]
        assert not how or answer["timings"]["draft_n"] > 0


@pytest.mark.parametrize(
    ("picture", "why"),
    [
        ("data:image/png;base64,", "not in base64, or empty"),
        ("data:image/png;base64,####", "not in base64"),
        ("data:image/png,abc", "not in base64"),
        ("https://example.com/a.png", "only data URLs are read"),
        (url(b"hello, I am no picture"), "no JPEG"),
        (url(png()[:60]), "damaged"),
    ],
)
def test_what_cannot_be_read_is_refused_in_a_sentence(server: Served, picture: str, why: str) -> None:
    content = [{"type": "image_url", "image_url": {"url": picture}}, {"type": "text", "text": TEXT}]
    refused = server.ask("/v1/chat/completions", {"messages": [{"role": "user", "content": content}]})
    assert refused.status == 400 and why in refused.error["message"]
    assert "\n" not in refused.error["message"]


def test_sound_is_refused_by_a_model_that_only_sees(server: Served) -> None:
    sound = {"type": "input_audio", "input_audio": {"data": encoded(b"RIFF0000WAVE"), "format": "wav"}}
    refused = server.ask("/v1/chat/completions", {"messages": [{"role": "user", "content": [sound]}]})
    assert refused.status == 400 and "audio input is not supported" in refused.error["message"]


def test_a_projector_of_another_model_is_refused_at_the_start(tmp_path: Path) -> None:
    projector = write_projector(tmp_path / "mmproj.gguf", "gemma3", 128)
    with pytest.raises(AssertionError, match="the projector"), served(tmp_path, "--mmproj", str(projector)):
        pass
    assert tiny.target_path().exists()


def test_an_encoder_that_dies_costs_one_sentence_and_no_stream(server: Served) -> None:
    """llama.cpp's projectors end their process on what they did not expect."""
    asked = {"messages": message("def first(x):\n    return x\n\ndef second(x):"), **HOW, "max_tokens": 300}
    right = server.ask("/v1/chat/completions", asked).json["choices"][0]["message"]
    server.ask("/v1/chat/completions", {"messages": message(TEXT, png()), "max_tokens": 1})  # starts it
    [encoder] = [
        child for child in server.worker.children() if "edgespec.llama.projector_child" in child.cmdline()
    ]
    with ThreadPoolExecutor(2) as pool:
        stream = pool.submit(server.ask, "/v1/chat/completions", asked)
        encoder.suspend()  # it is at work, for all that others see
        dying = pool.submit(server.ask, "/v1/chat/completions", {"messages": message(TEXT, png(70, 70))})
        time.sleep(0.3)
        encoder.kill()
        refused = dying.result(30)
        assert refused.status == 400 and "could not be encoded" in refused.error["message"]
        assert stream.result(60).json["choices"][0]["message"] == right
    again = server.ask("/v1/chat/completions", {"messages": message(TEXT, png(70, 70)), "max_tokens": 4})
    assert again.status == 200
    assert server.worker.is_running()
