"""Guesses from earlier texts: `edgespec serve` without a draft against llama-server's n-gram pools, in turn.

    python tests/benchmarks/repeated_texts.py FOLDER --peer PATH/llama-server [--size 0.6B-F16]
        [--temperatures 0 0.7] [--repeats 2] [-n 64] [--json FILE]

Each server answers the same requests, one server at a time; the others are stopped meanwhile. What repeats:

    again      a question that was answered, with another seed
    edited     a question that was answered, with one word of it changed
    keystrokes the next completion of a text that grew by some letters, six times
    json       another text read into the same JSON schema, four times
    new        questions that nobody has asked: what looking for repetition costs

Only what comes after the first answer counts, but for `new`. Figures are tokens a second, all tokens over all
time, TTFT included; ratios are ours over theirs, geometric means over repeats, with their range. `plain` is
EdgeSpec without guesses. llama-server's pools have the settings that PEERS names.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from pairs import target_file
from streams_together import Stream, ask, healthy, only, our_port, ours, prompts, running, theirs

OURS, PLAIN = "edgespec", "plain"
PEERS = {
    "ngram-mod": "--spec-ngram-mod-n-match 8 --spec-ngram-mod-n-min 1 --spec-ngram-mod-n-max 64",
    "ngram-map-k4v": "--spec-ngram-map-k4v-size-n 8 --spec-ngram-map-k4v-size-m 48",
    "ngram-cache": "",
}
FORM = {
    "type": "object",
    "properties": {
        "name_of_the_function": {"type": "string", "maxLength": 20},
        "number_of_arguments": {"type": "integer", "minimum": 0, "maximum": 9},
        "is_documented": {"type": "boolean"},
        "what_it_returns": {"type": "string", "maxLength": 30},
    },
    "required": ["name_of_the_function", "number_of_arguments", "is_documented", "what_it_returns"],
    "additionalProperties": False,
}

Asked = tuple[str, dict[str, Any], bool]  # prompt, other fields of the request, whether it counts


def requests(kind: str, fresh: Iterator[str]) -> Iterator[Asked]:
    """Yields the requests of one repeat. fresh: prompts that nobody has seen."""
    text = next(fresh)
    if kind == "again":
        yield from [(text, {}, False), (text, {}, True)]
    elif kind == "edited":
        words = text.split(" ")
        words[len(words) // 2] = "other"
        yield from [(text, {}, False), (" ".join(words), {}, True)]
    elif kind == "keystrokes":
        yield from [(text[: len(text) - 18 + 3 * i], {}, i > 0) for i in range(7)]
    elif kind == "json":
        form = {"response_format": {"type": "json_schema", "json_schema": {"name": "f", "schema": FORM}}}
        yield from [(next(fresh), form, i > 0) for i in range(5)]
    else:
        yield text, {}, True


KINDS = ("again", "edited", "keystrokes", "json", "new")


def measured(
    ports: dict[str, int], kind: str, temperature: float, fresh: Iterator[str], n_tokens: int
) -> dict[str, float]:
    """Returns the tokens a second of each server for one repeat."""
    asked, speeds = list(requests(kind, fresh)), {}
    for name in np.random.default_rng(len(asked[0][0])).permutation(list(ports)):
        with only(ports[name]) as port:
            answers: list[Stream] = []
            for i, (prompt, fields, counts) in enumerate(asked):
                n = 2 * n_tokens if fields else n_tokens  # what has a form ends by itself
                one = ask(port, prompt, n_tokens=n, temperature=temperature, seed=i, fields=fields)
                answers += [one] if counts else []
        speeds[str(name)] = sum(one.tokens for one in answers) / sum(one.wall for one in answers)
    return speeds


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where the targets are, or are made")
    parser.add_argument("--peer", type=Path, required=True, help="the llama-server to compare with")
    parser.add_argument("--size", default="0.6B-F16")
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 0.7])
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("-n", "--tokens", type=int, default=64, help="of each answer (64)")
    parser.add_argument("--ctx", type=int, default=2048)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, help="a file for every figure")
    return parser.parse_args()


def main() -> int:
    arguments = parsed()
    os.environ.pop("EDGESPEC_THREADS", None)
    target = target_file(arguments.folder, arguments.size)
    how = {"slots": 1, "n_ctx": arguments.ctx, "threads": arguments.threads}
    rows: list[dict[str, Any]] = []
    with ExitStack() as servers:
        os.environ["EDGESPEC_CACHE_DIR"] = servers.enter_context(tempfile.TemporaryDirectory())
        plain = ours(target, None, **how)
        guessing = [word for word in plain if word != "--no-draft"]
        ports = {
            OURS: servers.enter_context(running(guessing, our_port)),
            PLAIN: servers.enter_context(running(plain, our_port)),
        }
        for name, settings in PEERS.items():
            words, port = theirs(arguments.peer, target, None, **how)
            words += ["--spec-type", name, *settings.split()]
            ports[name] = servers.enter_context(running(words, partial(lambda port, _: healthy(port), port)))
        fresh = prompts()
        for port in ports.values():  # warm
            with only(port):
                ask(port, "def warm():", n_tokens=8, temperature=0, seed=1)
        for temperature in arguments.temperatures:
            for kind in arguments.kinds:
                for _ in range(arguments.repeats):
                    speeds = measured(ports, kind, temperature, fresh, arguments.tokens)
                    rows.append({"kind": kind, "temperature": temperature, **speeds})
                    print(f"T={temperature:g} {kind:10}", speeds, file=sys.stderr)
    print(f"| T | | {' | '.join(ports)} | over {' | over '.join(list(ports)[1:])} |")
    print("|---" * (1 + 2 * len(ports)) + "|")
    for temperature in arguments.temperatures:
        for kind in arguments.kinds:
            own = [row for row in rows if (row["kind"], row["temperature"]) == (kind, temperature)]
            found = {name: np.array([row[name] for row in own]) for name in ports}
            ratios = [found[OURS] / found[name] for name in list(ports)[1:]]
            means = [f"{np.exp(np.log(one).mean()):.1f}" for one in found.values()]
            means += [f"{np.exp(np.log(r).mean()):.2f} ({r.min():.2f} to {r.max():.2f})" for r in ratios]
            print(f"| {temperature:g} | {kind} | {' | '.join(means)} |")
    if arguments.json:
        arguments.json.write_text(json.dumps(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
