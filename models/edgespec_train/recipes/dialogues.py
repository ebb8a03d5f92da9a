"""Turn items of the standard library into conversations.

Each maker takes an item and a random generator and returns messages, or None if the item does not
suit. The text of a user's question varies; the answer is Python's own documentation or code.
"""

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edgespec_train.recipes.sources import Documented

Message = dict[str, Any]
Maker = Callable[[Documented, random.Random], list[Message] | None]

# Written by hand: hello, who are you, what is this, thanks, and the like; any question may meet any answer.
# The answers are honest about what the pair is: a tiny model that knows the standard library, and not well.
HELLO = json.loads(Path(__file__).with_name("hello.json").read_text(encoding="utf-8"))

WHAT = [
    "What does `{name}` do?", "what does {name} do", "What is `{name}`?", "Explain `{name}`.",
    "Tell me about `{name}`.", "Describe `{name}`.", "How does `{name}` work?", "What is {name} for?",
    "Document `{name}`.", "What is `{name}` used for?", "I do not understand `{name}`. What does it do?",
    "Can you explain {name}?", "Give me the documentation of `{name}`.",
    "What does the {kind} `{name}` do?", "Explain the {kind} `{name}`.", "help({name})", "{name}?",
    "What does `{short}` of the `{module}` module do?",
    "In the `{module}` module, what does `{short}` do?",
]  # fmt: skip
SIGNATURE = [
    "Show the signature of `{name}`.", "What is the signature of `{name}`?",
    "Which arguments does `{name}` take?", "What parameters does {name} have?", "How do I call `{name}`?",
    "Give me the signature of {name}.", "signature of {name}",
]  # fmt: skip
MEMBERS = [
    "What are the methods of `{name}`?", "Which methods does `{name}` have?",
    "List the methods of {name}.", "What can I call on a `{name}`?",
    "Name the methods of the class `{name}`.",
]  # fmt: skip
CONTENTS = [
    "What is in the module `{name}`?", "What does the module `{name}` define?",
    "List what `{name}` contains.", "Which functions and classes are in {name}?",
]  # fmt: skip
WRITE_BODY = [
    "Write the body of this function:\n\n{code}", "Complete this function:\n\n{code}",
    "Implement this:\n\n{code}", "Fill in this function.\n\n{code}",
    "Finish this function of the `{module}` module:\n\n{code}",
    "Write the code that belongs here:\n\n{code}", "{code}\n\nWrite the body.",
    "{code}\n\nImplement it, please.",
]  # fmt: skip
WRITE_WHOLE = [
    "Write a function `{short}`. {purpose}", "Write `{short}` in Python: {purpose}",
    "I need a function `{short}`. {purpose}", "Show me how `{name}` is written.",
    "Show the source of `{name}`.",
]  # fmt: skip
EXPLAIN = [
    "What does this code do?\n\n{code}", "Explain this code:\n\n{code}",
    "Write a docstring for this function:\n\n{code}", "Explain:\n\n{code}",
    "Summarise this function.\n\n{code}",
]  # fmt: skip
FIND = [
    "Which function does this: {purpose}", "How do I do this in Python? {purpose}",
    "What do I use for this? {purpose}", "I am looking for something that does this: {purpose}",
    "Is there a function for this? {purpose}",
]  # fmt: skip
EXAMPLE = [
    "Give me an example of `{name}`.", "Show an example for `{name}`.",
    "How is `{name}` used? Show an example.", "example of {name}", "Show me `{name}` at work.",
]  # fmt: skip
GO_ON = ["Go on.", "Continue.", "Tell me more.", "And then?", "more", "Please go on."]
TOPIC = [
    "Explain {topic} in Python.", "Tell me about {topic} in Python.",
    "What does the Python reference say about {topic}?", "How do {topic} work in Python?",
    "Python: {topic}", "help('{key}')",
]  # fmt: skip
MAX_ANSWER = 1600  # characters; about 450 tokens


def fence(code: str) -> str:
    """Put code into a Markdown block."""
    return f"```python\n{code}\n```"


def purpose_of(doc: str) -> str:
    """Return the first sentence of a docstring on one line."""
    first = " ".join(doc.split("\n\n")[0].split())
    found = re.match(r".{12,200}?[.!?](?=\s|$)", first)
    return found.group(0) if found else first[:200]


def shorten(text: str, limit: int = MAX_ANSWER) -> str:
    """Cut a text between paragraphs, or lines, below `limit` characters."""
    for mark in ("\n\n", "\n"):
        if len(text) <= limit:
            return text
        cut = text.rfind(mark, 0, limit)
        if cut > limit // 3:
            return text[:cut].rstrip()
    return text[:limit]


def dress(doc: str) -> str:
    """Make a docstring read as an answer: doctest lines become Markdown blocks."""
    out: list[str] = []
    inside = False
    for paragraph in shorten(doc).split("\n\n"):
        example = paragraph.lstrip().startswith(">>>")
        if example != inside:
            out.append("```" if inside else "```python")
            if inside and out[-2] == "":
                out.pop(-2)
            inside = example
            if not inside:
                out.append("")
        out += [*paragraph.split("\n"), ""]
    while out and not out[-1]:
        out.pop()
    return "\n".join(out + ["```"] if inside else out)


def fill(rng: random.Random, phrases: list[str], item: Documented, **more: str) -> str:
    """Choose a phrasing and put the item's names into it."""
    return rng.choice(phrases).format(
        name=item.name.removeprefix("builtins."), short=item.short, kind=item.kind, module=item.module, **more
    )


def turn(question: str, answer: str) -> list[Message]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def head_of(item: Documented) -> str:
    """Return the call as documentation prints it, in a Markdown block, or ""."""
    return fence(item.signature) if item.signature and len(item.signature) < 300 else ""


def ask_what(item: Documented, rng: random.Random) -> list[Message] | None:
    if len(item.doc) < 15:
        return None
    answer = dress(item.doc)
    head = head_of(item)
    if head and rng.random() < 0.35:
        answer = f"{head}\n\n{answer}"
    return turn(fill(rng, WHAT, item), answer)


def ask_signature(item: Documented, rng: random.Random) -> list[Message] | None:
    head = head_of(item)
    return turn(fill(rng, SIGNATURE, item), head) if head and item.kind != "class" else None


def ask_members(item: Documented, rng: random.Random) -> list[Message] | None:
    if not item.members:
        return None
    module = item.kind == "module"
    shown = item.members[:40]
    kind = "The module" if module else "The class"
    what = "defines" if module else "has these methods"
    listed = "\n".join(f"- `{m}`" for m in shown)
    phrases = CONTENTS if module else MEMBERS
    return turn(fill(rng, phrases, item), f"{kind} `{item.name}` {what}:\n\n{listed}")


def ask_body(item: Documented, rng: random.Random) -> list[Message] | None:
    """Signature and documentation -> the code below them."""
    if not item.signature or not 20 <= len(item.body) <= MAX_ANSWER or len(item.doc) > 900:
        return None
    quoted = "\n".join("    " + line if line else "" for line in item.doc.split("\n"))
    code = item.signature + (f'\n    """{quoted[4:]}"""' if item.doc else "")
    whole = rng.random() < 0.3
    answer = f"{code}\n{item.body}" if whole else item.body
    return turn(fill(rng, WRITE_BODY, item, code=fence(code)), fence(answer))


def ask_whole(item: Documented, rng: random.Random) -> list[Message] | None:
    if not item.body or len(item.source) > MAX_ANSWER or len(item.doc) < 20:
        return None
    return turn(fill(rng, WRITE_WHOLE, item, purpose=purpose_of(item.doc)), fence(item.source))


def ask_explain(item: Documented, rng: random.Random) -> list[Message] | None:
    if not item.body or len(item.body) > 1200 or len(item.doc) < 20:
        return None
    code = f"{item.signature}\n{item.body}"
    return turn(fill(rng, EXPLAIN, item, code=fence(code)), dress(item.doc))


def ask_find(item: Documented, rng: random.Random) -> list[Message] | None:
    if len(item.doc) < 25 or item.kind == "module" or item.short[0] == "_":
        return None
    name = item.name.removeprefix("builtins.")
    call = item.signature.removeprefix("def ").rstrip(":")
    shape = rng.choice(
        [
            "Use `{name}`.",
            "That is `{name}`.",
            "`{name}` does that.",
            "Use `{name}`:\n\n```python\n{call}\n```",
        ]
    )
    if "{call}" in shape and (not call or len(call) > 150):
        shape = "Use `{name}`."
    return turn(fill(rng, FIND, item, purpose=purpose_of(item.doc)), shape.format(name=name, call=call))


def ask_example(item: Documented, rng: random.Random) -> list[Message] | None:
    """Answer with the doctest lines of the documentation alone."""
    blocks = [p for p in item.doc.split("\n\n") if ">>>" in p]
    if not blocks:
        return None
    lines = "\n\n".join(blocks)
    start = lines.index(">>>")
    return turn(fill(rng, EXAMPLE, item), fence(shorten(lines[start:])))


MAKERS: list[tuple[Maker, float]] = [
    (ask_what, 1.0),
    (ask_body, 0.55),
    (ask_whole, 0.3),
    (ask_explain, 0.35),
    (ask_signature, 0.15),
    (ask_members, 0.5),
    (ask_find, 0.25),
    (ask_example, 0.7),
]


def topic_dialogue(key: str, text: str, rng: random.Random) -> list[Message]:
    """Walk through a stretch of a reference topic, one question at first, then "go on"."""
    title = text.split("\n", 1)[0].strip().replace('"', "`")
    parts = [
        shorten(p.strip()) for p in re.split(r"\n\n(?=\S)", text)[1:] if "****" not in p and "====" not in p
    ]
    chunks: list[str] = []
    for part in parts:
        if chunks and len(chunks[-1]) + len(part) < 900:
            chunks[-1] += "\n\n" + part
        else:
            chunks.append(part)
    topic = title if rng.random() < 0.5 or title[:1].islower() else title[:1].lower() + title[1:]
    messages: list[Message] = []
    first = rng.randrange(len(chunks)) if len(chunks) > 2 and rng.random() < 0.5 else 0
    question = rng.choice(TOPIC).format(topic=topic, key=key)
    for chunk in chunks[first : first + rng.choice([1, 1, 2, 3])]:
        messages += turn(question, chunk)
        question = rng.choice(GO_ON)
    return messages


def small_talk(rng: random.Random) -> list[Message]:
    talk = rng.choice(HELLO["small_talk"])
    return turn(rng.choice(talk["questions"]), rng.choice(talk["answers"]))


def with_system(messages: list[Message], rng: random.Random, share: float = 0.15) -> list[Message]:
    """Put a system prompt before some conversations."""
    if rng.random() >= share:
        return messages
    return [{"role": "system", "content": rng.choice(HELLO["system_prompts"])}, *messages]
