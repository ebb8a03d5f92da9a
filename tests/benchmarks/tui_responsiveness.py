"""How long a key takes to be on the screen while an answer streams, and what 10,000 tokens cost in memory.

    python tests/benchmarks/tui_responsiveness.py [--turns 200] [--tok-per-s 200] [--seconds 10]
    python tests/benchmarks/tui_responsiveness.py --memory [--tokens 10000] [--tok-per-s 200]
    python tests/benchmarks/tui_responsiveness.py --watching [--tok-per-s 130] [--seconds 10]

An echo is counted from the moment the key event is posted to the frame that shows the letter being made.
cpu_*: processor time in between, which says on a busy machine what an idle one would take.
--watching: nobody types, one token comes a round; how much of a core the app takes from the model.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fake_endpoint import FAKE, FakeEndpoint, rounds_of
from textual import events
from textual.screen import Screen

from edgespec_tui.app import ChatApp
from edgespec_tui.sessions.conversation import Conversation
from edgespec_tui.widgets.question import QuestionText

ANSWER = """Reading a file line by line is **cheap**, because a file is an iterator:

```python
with path.open(encoding="utf-8") as lines:
    longest = max(lines, key=len)
```

- `open` gives text unless the mode has a `b`
- the `with` statement closes it, also after an error

So a file of many gigabytes needs the memory of one line. """


def conversation(turns: int) -> Conversation:
    """Returns a conversation of that many turns."""
    talk = Conversation(title="A long one")
    for i in range(turns // 2):
        question = talk.add("user", f"Question {i}: how do I read a file?", parent=talk.head)
        answer = talk.add("assistant", ANSWER, parent=question.id, model="Fake")
        talk.change(replace(answer, finish="stop", figures={"n_tokens": 80, "tok_per_s": 40.0}))
    return talk


class Echo:
    """When each letter was posted, and when a frame with it had been made for the terminal."""

    def __init__(self, app: ChatApp) -> None:
        self._app, self._posted, self._n = app, 0.0, 0
        self.seconds: list[float] = []
        self.cpu: list[float] = []
        self._cpu = 0.0
        display = app._display

        def watched(screen: Screen[object], renderable: Any) -> None:
            display(screen, renderable)
            if hasattr(renderable, "render_segments"):  # what is written to a terminal, where there is one
                renderable.render_segments(app.console)
            prompt = app.chat.prompt
            if self._posted and prompt.text == "x" * self._n:
                self.seconds.append(time.perf_counter() - self._posted)
                self.cpu.append(time.process_time() - self._cpu)
                self._posted = 0.0

        app._display = watched  # type: ignore[method-assign]

    def post(self) -> None:
        """Presses a key."""
        if not self._posted:
            self._n += 1
            self._posted, self._cpu = time.perf_counter(), time.process_time()
            self._app.post_message(events.Key("x", "x"))


async def responsiveness(turns: int, tok_per_s: float, seconds: float) -> dict[str, float]:
    """Types while an answer streams; returns milliseconds."""
    words = int(tok_per_s * seconds * 1.2)
    long = (ANSWER * (words // len(ANSWER.split(" ")) + 1)).strip()
    app = ChatApp(FakeEndpoint(answers=[long], tok_per_s=tok_per_s, info=replace(FAKE, n_ctx=None)),
                  first=conversation(turns))  # fmt: skip
    began = time.perf_counter()
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        shown = time.perf_counter() - began
        await app.chat.answers.ask(QuestionText("again?"))
        await asyncio.sleep(1.0)
        echo = Echo(app)
        busy, until = time.process_time(), time.perf_counter() + seconds
        while time.perf_counter() < until and app.chat.answering:
            echo.post()
            await asyncio.sleep(0.13)
        busy = (time.process_time() - busy) / seconds
        figures = app.chat.answers.figures
        speed = figures.now_per_s() if figures else None
        widgets = len(list(app.chat.walk_children()))
        await app.chat.answers.stop()
        took = sorted(1000 * second for second in echo.seconds)
        p50, p95 = took[len(took) // 2], took[int(len(took) * 0.95)]
        return {
            "keys": len(took), "widgets": widgets, "p50_ms": p50, "p95_ms": p95, "max_ms": took[-1],
            "cpu_p50_ms": sorted(echo.cpu)[len(took) // 2] * 1000,
            "cpu_p95_ms": sorted(echo.cpu)[int(len(took) * 0.95)] * 1000,
            "tok_per_s": speed or 0.0, "cpu": busy, "shown_s": shown,
        }  # fmt: skip


async def memory(tokens: int, tok_per_s: float) -> dict[str, float]:
    """Streams an answer of so many tokens; returns megabytes at a fifth of it, a half, and its end."""
    long = (ANSWER * (tokens // len(ANSWER.split(" ")) + 1)).strip()
    app = ChatApp(FakeEndpoint(answers=[long], tok_per_s=tok_per_s, info=replace(FAKE, n_ctx=None)))
    process = psutil.Process()
    found = {}
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        await app.chat.answers.ask(QuestionText("at length"))
        for mark in (tokens // 5, tokens // 2, tokens):
            while app.chat.answering and (
                app.chat.answers.figures is None or app.chat.answers.figures.n_tokens < mark
            ):
                await asyncio.sleep(0.1)
            gc.collect()
            found[f"mb_at_{mark}"] = process.memory_info().rss / 1e6
        found["widgets"] = len(list(app.chat.walk_children()))
    return found


async def watching(tok_per_s: float, seconds: float) -> dict[str, float]:
    """Streams an answer while nobody types; returns the part of a core that it takes, and frames a second."""
    words = int(tok_per_s * (seconds + 3))
    long = (ANSWER * (words // len(ANSWER.split(" ")) + 1)).strip()
    answer = rounds_of(long, per_round=1, drafted=0)
    app = ChatApp(FakeEndpoint(answers=[answer], tok_per_s=tok_per_s, info=replace(FAKE, n_ctx=None)))
    display, frames = app._display, [0]

    def watched(screen: Screen[object], renderable: Any) -> None:
        display(screen, renderable)
        frames[0] += 1
        if hasattr(renderable, "render_segments"):
            renderable.render_segments(app.console)

    app._display = watched  # type: ignore[method-assign]
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        await app.chat.answers.ask(QuestionText("at length"))
        await asyncio.sleep(1.5)
        began, busy, before = time.perf_counter(), time.process_time(), frames[0]
        await asyncio.sleep(seconds)
        took, streams = time.perf_counter() - began, float(app.chat.answering)
        found = {"cpu": (time.process_time() - busy) / took, "frames_per_s": (frames[0] - before) / took}
        await app.chat.answers.stop()
        return found | {"streams": streams}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--tok-per-s", type=float, default=200)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--watching", action="store_true")
    parser.add_argument("--tokens", type=int, default=10_000)
    arguments = parser.parse_args()
    if arguments.memory:
        work = memory(arguments.tokens, arguments.tok_per_s)
    elif arguments.watching:
        work = watching(arguments.tok_per_s, arguments.seconds)
    else:
        work = responsiveness(arguments.turns, arguments.tok_per_s, arguments.seconds)
    print(json.dumps({name: round(value, 3) for name, value in asyncio.run(work).items()}))
