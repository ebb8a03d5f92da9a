"""Make conversations with tools and with visible reasoning, from the same documentation.

They are few: enough that the pair knows the form (a JSON call between `<tool_call>` words, an answer that
uses what the tool returned, reasoning between `<think>` words), so that clients can be tried on it.
"""

import json
import random
from typing import Any

from edgespec_train.recipes.dialogues import (
    SIGNATURE,
    WHAT,
    Message,
    dress,
    fence,
    fill,
    purpose_of,
    shorten,
    small_talk,
)
from edgespec_train.recipes.sources import Documented

Tool = dict[str, Any]


def declare(name: str, description: str, /, **arguments: str) -> Tool:
    """Write a tool in OpenAI's format; every argument is a string with a description."""
    properties = {key: {"type": "string", "description": text} for key, text in arguments.items()}
    parameters = {"type": "object", "properties": properties, "required": list(arguments)}
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }


LOOKUPS = [
    declare("lookup_documentation", "Look up the documentation of a Python name.", name="the dotted name"),
    declare("search_docs", "Search the Python documentation.", query="what to search for"),
    declare("get_docstring", "Return the docstring of an object.", name="the qualified name of the object"),
    declare("python_help", "Show help() of a Python object.", object="the object"),
]
SIGNATURES = [
    declare("get_signature", "Return the signature of a Python function.", name="the dotted name"),
    declare("inspect_signature", "Show which arguments a function takes.", function="the function"),
]
OTHERS = [
    declare("get_weather", "Get the current weather of a city.", city="the city"),
    declare("read_file", "Read a file of the project.", path="the path of the file"),
    declare("run_python", "Run Python code and return what it prints.", code="the code"),
    declare("list_files", "List the files of a folder.", folder="the folder"),
    declare("calculator", "Compute an arithmetic expression.", expression="the expression"),
]
CITIES = "Paris Berlin London Tokyo Rome Madrid Vienna Oslo Cairo Lima Prague Boston".split()
SKIES = ["sunny", "cloudy", "light rain", "snow", "clear sky", "windy", "fog"]


def answer_with(tool: Tool, argument: str, question: str, result: str, answer: str) -> list[Message]:
    """Lay out question, call, tool result and answer."""
    function = tool["function"]
    arguments = {next(iter(function["parameters"]["properties"])): argument}
    call = {"type": "function", "function": {"name": function["name"], "arguments": arguments}}
    return [
        {"role": "user", "content": question},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": result},
        {"role": "assistant", "content": answer},
    ]


def weather(rng: random.Random) -> list[Message]:
    city, sky, degrees = rng.choice(CITIES), rng.choice(SKIES), rng.randrange(-5, 33)
    question = rng.choice(
        ["What is the weather in {}?", "How is the weather in {} today?", "weather in {}"]
    ).format(city)
    result = json.dumps({"city": city, "sky": sky, "temperature": degrees})
    return answer_with(OTHERS[0], city, question, result, f"In {city} it is {degrees} degrees, {sky}.")


def arithmetic(rng: random.Random) -> list[Message]:
    a, b, sign = rng.randrange(2, 900), rng.randrange(2, 900), rng.choice("+-*")
    value = {"+": a + b, "-": a - b, "*": a * b}[sign]
    question = rng.choice(["What is {}?", "Compute {}.", "How much is {}?"]).format(f"{a} {sign} {b}")
    return answer_with(OTHERS[4], f"{a} {sign} {b}", question, str(value), f"{a} {sign} {b} = {value}")


def with_tool(item: Documented, rng: random.Random) -> tuple[list[Message], list[Tool]] | None:
    """Ask about an item while tools are offered; the model calls the fitting one."""
    if len(item.doc) < 15:
        return None
    distractors = rng.sample(OTHERS, rng.choice([0, 1, 1, 2]))
    chance = rng.random()
    if chance < 0.1:
        chosen, messages = rng.choice(LOOKUPS), small_talk(rng)
    elif chance < 0.2:
        chosen, messages = OTHERS[0], weather(rng)
    elif chance < 0.25:
        chosen, messages = OTHERS[4], arithmetic(rng)
    elif chance < 0.45 and item.signature and len(item.signature) < 200:
        chosen = rng.choice(SIGNATURES)
        messages = answer_with(
            chosen, item.name, fill(rng, SIGNATURE, item), item.signature, fence(item.signature)
        )
    else:
        chosen = rng.choice(LOOKUPS)
        doc = shorten(item.doc, 700)
        messages = answer_with(chosen, item.name, fill(rng, WHAT, item), doc, dress(doc))
    tools = [chosen, *(t for t in distractors if t is not chosen)]
    rng.shuffle(tools)
    return messages, tools


def with_thought(messages: list[Message], item: Documented, rng: random.Random) -> list[Message]:
    """Put short reasoning before the last answer."""
    kind = {"method": "a method", "function": "a function", "class": "a class", "module": "a module"}[
        item.kind
    ]
    where = "" if item.kind == "module" else f" of the module {item.module}"
    lines = [f"The user asks about {item.name}. It is {kind}{where}."]
    if item.doc and rng.random() < 0.7:
        lines.append(f"Its documentation begins: {purpose_of(item.doc)}")
    lines.append(
        rng.choice(
            [
                "I will say what it does.",
                "I should answer from the documentation.",
                "A short answer is enough.",
            ]
        )
    )
    thought = "<think>\n" + "\n".join(lines) + "\n</think>\n\n"
    return [*messages[:-1], {**messages[-1], "content": thought + str(messages[-1]["content"])}]
