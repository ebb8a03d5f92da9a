"""The training text: what is in it, what is kept out, and that it is the same every time. No torch."""

import ast
import random

import pytest

from edgespec_train.recipes import actions, corpus, dialogues, marks, sources


@pytest.mark.slow
def test_tests_and_tables_are_left_out():
    modules = {f.module for f in sources.read_files()}
    assert {"argparse", "json.decoder", "textwrap"} <= modules
    assert not [m for m in modules if m.split(".")[0] in {"test", "idlelib", "lib2to3", "pydoc_data"}]
    assert "encodings.cp037" not in modules and "html.entities" not in modules


@pytest.mark.parametrize(
    ("module", "group"), [("_pydecimal", "decimal"), ("decimal", "decimal"), ("_pyio", "io")]
)
def test_twins_of_a_module_share_a_group(module, group):
    """A pure-Python twin has the same documentation: apart, one would tell what the other holds out."""
    assert sources.group_of(module) == group


@pytest.mark.slow
def test_the_split_holds_out_some_and_never_the_builtins():
    groups = {sources.group_of(f.module) for f in sources.read_files()}
    out = {g for g in groups if sources.is_held_out(g)}
    assert 0 < len(out) < len(groups) / 10
    assert not out & {"builtins", "os", "sys"}


def test_a_function_is_taken_apart():
    text = 'class A:\n    def f(self, x):\n        """Say x.\n\n        Yes.\n        """\n        return x\n'
    file = sources.SourceFile("sample", "sample.py", text)
    module, cls, method = sources.items_of(file)
    assert (module.kind, cls.kind, method.kind) == ("module", "class", "method")
    assert cls.members == ("f",)
    assert method.name == "sample.A.f"
    assert method.signature == "def f(self, x):"
    assert method.doc == "Say x.\n\nYes."
    assert method.body == "    return x"


def test_pieces_of_a_module_join_to_the_module(small_library):
    for file in small_library.files:
        assert "".join(corpus.cut(file, 1500)) == file.text.expandtabs(8)


def test_a_hole_is_filled_by_its_middle():
    text = "def f(x):\n    y = x + 1\n    return y\n\n\ndef g(x):\n    return f(x)\n"
    rng = random.Random(3)
    for _ in range(200):
        rest, middle = corpus.fill_in(text, rng).split(marks.FIM_MIDDLE)
        before, after = rest.removeprefix(marks.FIM_PREFIX).split(marks.FIM_SUFFIX)
        assert before + middle.removesuffix(marks.END_OF_TEXT) + after == text


def test_every_maker_finds_work(small_library):
    rng = random.Random(0)
    for make, _ in dialogues.MAKERS:
        made = [m for item in small_library.items if (m := make(item, rng))]
        assert made, make.__name__
        for messages in made:
            assert [m["role"] for m in messages] == ["user", "assistant"]
            assert all(m["content"].strip() and "{" + "name}" not in m["content"] for m in messages)


def test_a_body_goes_on_where_the_prompt_ends(small_library):
    """Question and answer together are a whole function, unless the answer repeats the head itself."""
    rng = random.Random(5)
    for item in small_library.items:
        made = dialogues.ask_body(item, rng)
        if made is None:
            continue
        code = made[0]["content"].split("```python\n")[1].split("\n```")[0]
        answer = made[1]["content"].removeprefix("```python\n").removesuffix("\n```")
        assert ast.parse(answer if answer.startswith(code) else f"{code}\n{answer}").body


def test_an_epoch_is_the_same_every_time(small_library):
    def texts(seed):
        rng = random.Random(seed)
        made = [*corpus.dialogue_documents(small_library, rng, greet=True)]
        return [d.text for d in [*made, *corpus.fim_documents(small_library, rng, 1.0)]]

    assert texts("a") == texts("a")
    assert texts("a") != texts("b")


def test_conversations_end_and_hold_no_foreign_marks(small_library):
    rng = random.Random(1)
    documents = [*corpus.dialogue_documents(small_library, rng, greet=True), *corpus.talk_documents(rng, 20)]
    assert {"docs", "body", "tool", "think", "talk"} <= {d.kind for d in documents}
    for document in documents:
        assert document.text.endswith(marks.TURN_END + marks.END_OF_TEXT)
        assert document.text.count(marks.TURN_START) == document.text.count(marks.TURN_END)


def test_a_tool_conversation_calls_what_is_offered(small_library):
    rng = random.Random(2)
    made = [found for item in small_library.items * 5 if (found := actions.with_tool(item, rng))]
    calls = 0
    for messages, tools in made:
        names = {t["function"]["name"] for t in tools}
        for message in messages:
            for call in message.get("tool_calls", ()):
                calls += 1
                assert call["function"]["name"] in names
    assert 0 < calls < len(made)  # some talk needs no tool


def test_first_words_are_answered_honestly():
    talks = dialogues.HELLO["small_talk"]
    answers = [a for talk in talks for a in talk["answers"] if "Who are you?" in talk["questions"]]
    assert answers and all("tiny" in a or "small" in a for a in answers)
