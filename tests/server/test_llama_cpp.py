"""The routes of llama.cpp's own server, as llama.vim, llama.vscode, Continue and Zed use them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from served import Served, served

SEEN = 'def parse(text):\n    """'
GREEDY = {"temperature": 0, "n_predict": 12}


def complete(server: Served, **fields: Any) -> Any:
    return server.ask("/completion", {"prompt": SEEN, **GREEDY, **fields}).json


def events(server: Served, path: str = "/completion", **fields: Any) -> list[dict[str, Any]]:
    body = server.ask(path, {"prompt": SEEN, **GREEDY, "stream": True, **fields}).body.decode()
    return [json.loads(line[6:]) for line in body.splitlines() if line.startswith("data: ")]


def tokens(server: Served, content: object, **fields: Any) -> Any:
    return server.ask("/tokenize", {"content": content, **fields}).json["tokens"]


def test_a_completion_tells_how_it_was_made(dialects: Served) -> None:
    got = complete(dialects, seed=7)
    assert got["content"] and got["stop"] is True and got["stop_type"] == "limit" and not got["truncated"]
    assert got["tokens_predicted"] == 12 == got["timings"]["predicted_n"] and got["tokens"] == []
    assert got["tokens_evaluated"] == len(tokens(dialects, SEEN)) and got["prompt"] == SEEN
    settings = got["generation_settings"]
    assert settings["temperature"] == 0 and settings["n_predict"] == 12 and settings["seed"] == 7
    assert got["has_new_line"] is ("\n" in got["content"])


def test_a_stream_ends_with_the_figures_and_says_the_same(dialects: Served) -> None:
    received = events(dialects)
    text = "".join(event["content"] for event in received)
    ids = [id for event in received for id in event["tokens"]]
    assert text == dialects.ask("/detokenize", {"tokens": ids}).json["content"]
    assert [event["stop"] for event in received] == [False] * (len(received) - 1) + [True]
    assert received[-1]["timings"]["predicted_n"] == 12 == sum(len(event["tokens"]) for event in received)


def test_a_stream_tells_how_far_a_long_prompt_has_been_read(dialects: Served) -> None:
    """An interface that shows a bar reads these; the last of them says that all was read."""
    asked = {"prompt": "to read " * 400, "return_progress": True, "timings_per_token": True, "n_predict": 2}
    received = events(dialects, **asked)
    told = [event["prompt_progress"] for event in received if "prompt_progress" in event]
    known, total = [one["processed"] for one in told], told[0]["total"]
    assert len(told) >= 3 and known == sorted(set(known)) and known[-1] == total > 512
    assert all(one["cache"] == known[0] and one["total"] == total for one in told)
    assert told[0]["time_ms"] == 0 < told[-1]["time_ms"] and "prompt_progress" not in received[-1]
    counts = [event["timings"]["prompt_n"] for event in received[: len(told)]]
    assert counts == [one - known[0] for one in known]
    again = [event["prompt_progress"] for event in events(dialects, **asked) if "prompt_progress" in event]
    assert again[0]["cache"] == again[0]["processed"] >= total - 2
    assert not any("prompt_progress" in event for event in events(dialects))


def test_why_it_ended_is_reported(dialects: Served) -> None:
    whole = complete(dialects, n_predict=40)["content"]
    word = whole.split()[1]
    stopped = complete(dialects, n_predict=40, stop=[word])
    assert (stopped["stop_type"], stopped["stopping_word"]) == ("word", word)
    assert whole.startswith(stopped["content"]) and word not in stopped["content"]
    asked = "<|im_start|>user\nWhat is EdgeSpec?<|im_end|>\n<|im_start|>assistant\n"
    assert complete(dialects, prompt=asked, n_predict=200)["stop_type"] == "eos"
    full = complete(dialects, prompt="a " * 1000, n_predict=-1, temperature=2, seed=3)
    assert full["stop_type"] == "eos" or full["truncated"]


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["n_predict", "max_tokens", "max_completion_tokens"])
def test_how_many_tokens_may_come_has_three_names_and_two_ways_to_say_what_fits(
    dialects: Served, name: str
) -> None:
    """-2, until the context is full, was refused under the name max_tokens."""
    fields = {"prompt": SEEN, "temperature": 0, "ignore_eos": True}
    for fits in (-1, -2):
        full = dialects.ask("/completion", {**fields, "prompt": [300] * 2030, name: fits}).json
        assert full["truncated"] and full["stop_type"] == "limit", full
        assert full["tokens_evaluated"] + full["tokens_predicted"] >= 2047
        assert full["generation_settings"]["n_predict"] == -1
    assert dialects.ask("/completion", {**fields, name: 5}).json["tokens_predicted"] == 5
    assert dialects.ask("/completion", {**fields, name: 0}).json["content"] == ""


def test_an_answer_that_may_not_end_goes_on_to_its_limit(dialects: Served) -> None:
    """As benchmarks ask, with speculation or without."""
    asked = "<|im_start|>user\nWhat is EdgeSpec?<|im_end|>\n<|im_start|>assistant\n"
    fields = {"prompt": asked, "ignore_eos": True, "n_predict": 100}
    answer = complete(dialects, **fields)
    assert answer["tokens_predicted"] == 100 and answer["stop_type"] == "limit"
    assert answer["generation_settings"]["ignore_eos"] is True
    biases = answer["generation_settings"]["logit_bias"]
    assert biases and {one["bias"] for one in biases} == {None}, "as llama-server shows it"
    assert answer["content"].startswith(complete(dialects, prompt=asked, n_predict=100)["content"])
    refused = dialects.ask("/completion", {**fields, "json_schema": {"type": "integer"}})
    assert refused.status == 400 and "ignore_eos" in refused.error["message"]


def test_prompts_come_as_text_tokens_a_mixture_or_several(dialects: Served) -> None:
    ids = tokens(dialects, SEEN, add_special=True)
    reply = complete(dialects, n_predict=4)["content"]  # few: beside others, a close choice may tip
    assert complete(dialects, n_predict=4, prompt=ids)["content"] == reply
    assert complete(dialects, n_predict=4, prompt={"prompt_string": SEEN})["content"] == reply
    several = complete(dialects, n_predict=4, prompt=[ids, SEEN, {"prompt_string": SEEN}])
    assert [answer["content"] for answer in several] == [reply] * 3
    assert [answer["index"] for answer in several] == [0, 1, 2]
    mixed = complete(dialects, prompt=[*ids[:2], "arse(text):"])
    assert mixed["tokens_evaluated"] > 3 and isinstance(mixed["content"], str)


def test_fields_may_be_picked(dialects: Served) -> None:
    got = complete(
        dialects, response_fields=["content", "timings/predicted_n", "generation_settings/top_k", "no"]
    )
    assert set(got) == {"content", "timings/predicted_n", "generation_settings/top_k"}
    assert got["timings/predicted_n"] == 12
    assert len(complete(dialects, return_tokens=True)["tokens"]) == 12


def test_probabilities_are_one_for_each_token(dialects: Served) -> None:
    for fields, name in (({}, "logprob"), ({"post_sampling_probs": True}, "prob")):
        got = complete(dialects, n_probs=3, **fields)["completion_probabilities"]
        assert len(got) == 12 and all(name in entry for entry in got)
    received = [event for event in events(dialects, n_probs=3) if not event["stop"]]
    assert len(received) == 12 and all(len(event["completion_probabilities"]) == 1 for event in received)
    entries = [event["completion_probabilities"][0] for event in received]
    assert "".join(event["content"] for event in received) == "".join(entry["token"] for entry in entries)


def test_a_stream_with_probabilities_has_each_token_once(dialects: Served) -> None:
    """Half of a character is held back; its token came at once and again with its probabilities."""
    asked = {"grammar": 'root ::= "😀😀😀"', "n_probs": 1, "return_tokens": True}
    received = [event for event in events(dialects, **asked) if not event["stop"]]
    whole = complete(dialects, **asked)
    assert len(whole["tokens"]) == 12 > len(whole["content"])
    assert [token for event in received for token in event["tokens"]] == whole["tokens"]
    assert "".join(event["content"] for event in received) == whole["content"]


def test_words_and_tokens_are_banned_in_every_notation(dialects: Served) -> None:
    first = complete(dialects, n_predict=1, return_tokens=True)["tokens"][0]
    for bias in ([[first, False]], [[first, -100]], {str(first): -100}):
        assert complete(dialects, n_predict=1, return_tokens=True, logit_bias=bias)["tokens"] != [first]
    word = dialects.ask("/detokenize", {"tokens": [first]}).json["content"]
    assert complete(dialects, n_predict=1, return_tokens=True, logit_bias=[[word, -100]])["tokens"] != [first]


def test_tokens_and_text_are_each_others(dialects: Served) -> None:
    text = "What is größer than 媽 and 🤗?"
    ids = tokens(dialects, text)
    assert dialects.ask("/detokenize", {"tokens": ids}).json == {"content": text}
    assert tokens(dialects, [*ids[:2], " more"])[:2] == ids[:2]
    pieces = tokens(dialects, text, with_pieces=True)
    assert [piece["id"] for piece in pieces] == ids
    spelt = b"".join(
        bytes(p["piece"]) if isinstance(p["piece"], list) else p["piece"].encode() for p in pieces
    )
    assert spelt.decode() == text
    assert tokens(dialects, "<|im_end|>") == [2] != tokens(dialects, "<|im_end|>", parse_special=False)
    assert dialects.ask("/detokenize", {"tokens": [999999]}).status == 400


def test_a_template_is_shown_as_it_is_used(dialects: Served) -> None:
    asked = {"messages": [{"role": "user", "content": "Hi"}]}
    prompt = dialects.ask("/apply-template", asked).json["prompt"]
    assert prompt == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    begun = dialects.ask("/apply-template", {**asked, "add_generation_prompt": False}).json["prompt"]
    assert begun == "<|im_start|>user\nHi<|im_end|>\n"


def test_an_editor_learns_what_is_there(dialects: Served) -> None:
    """Zed looks for these fields before it offers a model, and its tools."""
    props = dialects.ask("/props").json
    assert props["default_generation_settings"]["n_ctx"] == 2048 and props["total_slots"] == 4
    assert (
        props["chat_template_caps"]["supports_tool_calls"] and props["chat_template_caps"]["supports_tools"]
    )
    assert props["modalities"]["vision"] is False and props["model_path"].endswith(".gguf")
    assert "/" not in props["model_path"]  # where it lies is nobody's business
    slots = dialects.ask("/slots").json
    assert [slot["id"] for slot in slots] == [0, 1, 2, 3] and slots[0]["n_ctx"] == 2048


def test_what_a_request_leaves_out_the_server_says(tmp_path_factory: pytest.TempPathFactory) -> None:
    template = tmp_path_factory.mktemp("template") / "thinks.jinja"
    template.write_text("{{ messages[-1].content }}{{ '<think>' if enable_thinking else '<silent>' }}")
    flags = ("--temperature", "0.5", "--seed", "42", "-n", "6", "--no-draft", "--reasoning", "off",
             "--chat-template-file", str(template))  # fmt: skip
    with served(tmp_path_factory.mktemp("unsaid"), *flags) as server:
        params = server.ask("/props").json["default_generation_settings"]["params"]
        assert (params["temperature"], params["seed"], params["n_predict"]) == (0.5, 42, 6)
        got = server.ask("/completion", {"prompt": SEEN}).json
        assert got["tokens_predicted"] <= 6 and got["generation_settings"]["temperature"] == 0.5
        assert got["generation_settings"]["seed"] == 42
        assert server.ask("/completion", {"prompt": SEEN}).json["content"] == got["content"]
        answer = server.ask(
            "/completion", {"prompt": SEEN, "n_predict": -1, "temperature": 0, "seed": 1}
        ).json
        assert answer["tokens_predicted"] > 6 and answer["generation_settings"]["seed"] == 1
        asked: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}
        assert server.ask("/apply-template", asked).json["prompt"] == "Hi<silent>"
        thinking = {**asked, "chat_template_kwargs": {"enable_thinking": True}}
        assert server.ask("/apply-template", thinking).json["prompt"] == "Hi<think>"


# -- filling in


def infill(server: Served, **fields: Any) -> Any:
    asked = {"input_prefix": "def add(a, b):\n", "input_suffix": "\n\nprint(add(1, 2))\n", "n_predict": 16,
             "temperature": 0, **fields}  # fmt: skip
    return server.ask("/infill", asked).json


def test_text_is_filled_in_between(dialects: Served) -> None:
    got = infill(dialects, prompt="    ")
    assert got["prompt"].startswith("<|fim_prefix|>def add(a, b):\n    <|fim_suffix|>\n\nprint")
    assert got["prompt"].endswith("<|fim_middle|>") and got["content"]
    more = infill(dialects, input_extra=[{"filename": "x.py", "text": "import this"}])
    assert more["prompt"].startswith("\n\n--- snippet ---\n\nimport this<|fim_prefix|>")


@pytest.mark.slow
def test_what_is_far_from_the_gap_is_cut(dialects: Served) -> None:
    long = infill(dialects, input_prefix="x = 1\n" * 2000, input_suffix="y = 2\n" * 2000)
    assert long["tokens_evaluated"] < 2048 and long["content"]
    assert long["prompt"].count("x = 1") > 2 * long["prompt"].count("y = 2") > 50


def test_an_editor_warms_the_cache_up(dialects: Served) -> None:
    """llama.vim asks for nothing first, so that the next request finds its prompt read."""
    answer = {"samplers": [], "cache_prompt": True, "t_max_prompt_ms": 1, "t_max_predict_ms": 1, "id_slot": 0}
    fields = {"input_prefix": "class Warm:\n    def up(self):\n        ", "stream": False}
    quiet = infill(dialects, **fields, **answer, n_predict=0, response_fields=[""])
    assert quiet == {}
    silent = infill(dialects, **fields, n_predict=0)
    assert silent["content"] == "" and silent["timings"]["predicted_n"] == 0
    wanted = ["content", "timings/prompt_n", "timings/predicted_n", "truncated", "tokens_cached"]
    got = infill(dialects, **fields, response_fields=wanted)
    assert set(got) == set(wanted) and got["timings/prompt_n"] <= 2


def test_lines_that_leave_the_block_end_an_answer(dialects: Served) -> None:
    free = infill(dialects, prompt="    ", n_predict=60)["content"]
    assert any(line and not line.startswith(" ") for line in free.split("\n")[1:]), free
    held = infill(dialects, prompt="    ", n_predict=60, n_indent=4)
    assert free.startswith(held["content"]) and held["stop_type"] == "limit"
    assert all(line.startswith("    ") or not line.strip() for line in held["content"].split("\n")[1:])


def test_time_that_is_up_ends_an_answer_behind_a_line(dialects: Served) -> None:
    free = infill(dialects, n_predict=200, temperature=1, seed=4)
    short = infill(dialects, n_predict=200, temperature=1, seed=4, t_max_predict_ms=1)
    assert short["tokens_predicted"] < free["tokens_predicted"] and "\n" in short["content"]


def test_openais_clients_fill_in_with_a_suffix(dialects: Served) -> None:
    asked = {"prompt": "def add(a, b):\n    ", "suffix": "\n", "max_tokens": 8, "temperature": 0}
    got = dialects.ask("/v1/completions", asked)
    assert got.status == 200 and got.json["choices"][0]["text"]
    assert got.json["usage"]["prompt_tokens"] > 8


@pytest.mark.parametrize("extra", [{}, {"filename": "ok"}, {"filename": 1}, {"filename": 1, "text": "x"}, 5])
def test_chunks_without_text_are_refused(dialects: Served, extra: object) -> None:
    asked = {"input_prefix": "a", "input_suffix": "b", "input_extra": [extra]}
    got = dialects.ask("/infill", asked)
    assert got.status == 400 and "input_extra" in got.error["message"]


# -- what is not there


@pytest.mark.parametrize(
    ("path", "fields", "status", "word"),
    [
        ("/completion", {"mirostat": 2}, 400, "mirostat"),
        ("/completion", {"adaptive_target": 0.5}, 400, "adaptive_target"),
        ("/completion", {"lora": [{"id": 0, "scale": 1}]}, 400, "lora"),
        ("/completion", {"prompt": {"prompt_string": "x", "multimodal_data": ["x"]}}, 400, "multimodal_data"),
        ("/completion", {"image_data": [1]}, 400, "image_data"),
        ("/completion", {"prompt": [999999]}, 400, "999999"),
        ("/completion", {"prompt": []}, 400, "prompt"),
        ("/completion", {"n_predict": "many"}, 400, "n_predict is 'many'"),
        ("/completion", {"max_completion_tokens": "many"}, 400, "max_completion_tokens is 'many'"),
        ("/completion", {"repeat_last_n": "x"}, 400, "repeat_last_n is 'x'"),
        ("/completion", {"n_cmpl": 0}, 400, "n_cmpl is 0"),
        ("/completion", {"prompt": "a " * 3000}, 400, "exceeds the available context size"),
        ("/completion", {"logit_bias": [["x", "y"]]}, 400, "logit_bias is [['x', 'y']]"),
        ("/infill", {}, 400, "input_prefix"),
        ("/v1/embeddings", {"input": "x"}, 501, "embedding"),
        ("/slots/0?action=save", {"filename": "x"}, 501, "slot"),
    ],
)
def test_what_cannot_be_done_is_stated(
    dialects: Served, path: str, fields: dict[str, Any], status: int, word: str
) -> None:
    got = dialects.ask(path, {**({"prompt": "x"} if path == "/completion" else {}), **fields})
    assert got.status == status and word in got.error["message"], got.body


@pytest.mark.parametrize("path", ["/completion", "/infill"])
@pytest.mark.parametrize(
    "name", ["repeat_last_n", "penalty_last_n", "dry_penalty_last_n", "typ_p", "typical_p"]
)
def test_a_wrong_value_is_reported_by_the_name_that_the_client_gave_it(
    dialects: Served, path: str, name: str
) -> None:
    """`repeat_last_n` was called penalty_last_n, and so was `dry_penalty_last_n` in `param`."""
    text = {"prompt": "x"} if path == "/completion" else {"input_prefix": "x", "input_suffix": "y"}
    error = dialects.ask(path, {**text, name: -7}).error
    assert error["message"].startswith(f"{name} is -7: it must be") and error["param"] == name


def test_what_means_nothing_here_is_passed_over(dialects: Served) -> None:
    beside = {"cache_prompt": False, "id_slot": 1, "n_keep": -1, "min_keep": 0, "mirostat": 0, "slot_id": -1,
              "adaptive_target": -1, "lora": [], "image_data": [], "t_max_prompt_ms": 500}  # fmt: skip
    passed_over, plain = complete(dialects, **beside), complete(dialects)
    assert passed_over["content"] and passed_over["tokens_predicted"] == plain["tokens_predicted"]
    assert passed_over["generation_settings"] == plain["generation_settings"]


def test_a_penalty_may_look_at_the_whole_context(dialects: Served) -> None:
    for n in (-1, 2048):
        answered = complete(dialects, repeat_last_n=n, repeat_penalty=1.2)
        assert answered["content"] and answered["generation_settings"]["repeat_last_n"] == n
