"""A stranger's template takes neither the time nor the memory of the process that renders it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import tiny_gguf
from commands import edgespec
from served import served, until

from edgespec.chat.conversation import compose
from edgespec.chat.template import LONGEST_TEMPLATE, Renderer, render
from edgespec.errors import TemplateError, TemplateOverrunError
from edgespec.system.limited_child import GIVEN_UP, Limits, Task, overrun

USER = [{"role": "user", "content": "Hi"}]
ENDLESS = "{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}"
GIANT = "{{ 'a' * 2000000000 }}"
OVERRUNS = {
    "a long string": (GIANT, "takes more than 256 MiB of memory"),
    "an absurd string": ("{{ 'a' * 10**10 }}", "takes more than 256 MiB of memory"),
    "a string that is doubled": (
        "{% set n = namespace(s='a') %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}",
        "takes more than 256 MiB of memory",
    ),
    "a wide format": ("{{ '%2000000000d' % 3 }}", "takes more than 256 MiB of memory"),
    "a wide margin": ("{{ messages[0].content | center(2000000000) }}", "takes more than 256 MiB of memory"),
    "a long list": ("{{ (range(99999) | list * 10000) | length }}", "takes more than 256 MiB of memory"),
    "a long join": ("{{ (['a' * 10**6] * 10**4) | join }}", "takes more than 256 MiB of memory"),
    "loops in loops": (ENDLESS, "takes more than 0.5 s of processor time"),
    "a giant number": ("{{ 9 ** (9 ** 9) }}", "takes more than 0.5 s of processor time"),
    "a long text": ("{{ 'a' * 5000000 }}", "makes a text of 5,000,000 characters"),
}


def asked(renderer: Renderer, template: str, messages: object = USER) -> str:
    return renderer.rendered(template, {"messages": messages}, None)


@pytest.fixture
def renderer() -> Iterator[Renderer]:
    made = Renderer(Limits(cpu_s=0.5, memory=256 << 20))
    yield made
    made.close()


@pytest.mark.sample(2)
@pytest.mark.parametrize("what", OVERRUNS)
def test_what_overruns_is_ended_and_reported(renderer: Renderer, what: str) -> None:
    """`'a' * 2000000000` took 4.1 GB and ended in a traceback of Jinja's; loops in loops did not end."""
    template, said = OVERRUNS[what]
    before = psutil.Process().memory_info().rss
    with pytest.raises(TemplateOverrunError, match=f"^the chat template {said}: give the model another"):
        asked(renderer, template)
    assert psutil.Process().memory_info().rss - before < 64 << 20
    assert asked(renderer, "{{ messages[0].content }}") == "Hi"


def test_a_long_conversation_may_take_more(renderer: Renderer) -> None:
    content = "word " * 1_000_000
    assert asked(renderer, "{{ messages[0].content }}", [{"content": content}]) == content


def test_a_template_that_overruns_when_it_is_tried_out_is_tried_once() -> None:
    """With some twenty conversations, at every request: each of them would have its time."""
    template = "{% if tools %}" + GIANT + "{% endif %}{{ messages[0].content }}"
    with pytest.raises(TemplateOverrunError, match="MiB of memory"):
        compose(template, USER)
    before = set(psutil.Process().children())  # the one that was killed may still be among them
    with pytest.raises(TemplateOverrunError, match="MiB of memory"):
        compose(template, USER)
    assert set(psutil.Process().children()) <= before, "nothing was rendered, or there would be another"


def test_a_template_of_a_megabyte_is_not_read() -> None:
    with pytest.raises(TemplateError, match="has 1,048,577 characters"):
        render("x" * (LONGEST_TEMPLATE + 1), USER)


def test_what_lies_too_deep_is_refused() -> None:
    deep: object = []
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(TemplateError, match="lists deep"):
        render("{{ messages }}", [{"role": "user", "content": deep}])


def test_a_child_that_somebody_ended_is_replaced(renderer: Renderer) -> None:
    before = set(psutil.Process().children())
    assert asked(renderer, "{{ 1 + 1 }}") == "2"
    [child] = set(psutil.Process().children()) - before
    child.kill()
    assert asked(renderer, "{{ 1 + 2 }}") == "3"
    [child] = set(psutil.Process().children()) - before
    child.suspend()  # so that it ends with the question before it
    threading.Timer(0.1, child.kill).start()
    assert asked(renderer, "{{ 1 + 3 }}") == "4"


def test_many_threads_get_their_own_answers(renderer: Renderer) -> None:
    found: dict[int, str] = {}

    def ask(i: int) -> None:
        for _ in range(20):
            found[i] = asked(renderer, "{{ messages[0].content }}", [{"content": f"thread {i}"}])
            assert found[i] == f"thread {i}"

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {i: f"thread {i}" for i in range(8)}


def test_closing_lets_go_of_all_who_wait() -> None:
    renderer = Renderer(Limits(cpu_s=1000, wall_s=1000))
    said: list[str] = []

    def ask() -> None:
        try:
            asked(renderer, ENDLESS)
        except TemplateError as error:
            said.append(str(error))

    threads = [threading.Thread(target=ask) for _ in range(3)]
    before = set(psutil.Process().children())
    for thread in threads:
        thread.start()
    until(
        lambda: any(sum(child.cpu_times()[:2]) > 0.2 for child in set(psutil.Process().children()) - before)
    )
    renderer.close()
    for thread in threads:
        thread.join(60)
    assert len(said) == 3 and all("the program is ending" in sentence for sentence in said)
    assert asked(renderer, "{{ 1 + 1 }}") == "2"
    renderer.close()


def test_what_was_given_up_keeps_nobody_waiting() -> None:
    """Each took its five seconds, one after another, though its client had left."""
    renderer = Renderer(Limits(cpu_s=1000, wall_s=1000))
    given_up = threading.Event()

    def ask() -> None:
        GIVEN_UP.set(given_up)
        with suppress(TemplateError):
            asked(renderer, ENDLESS)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(0.2)
    given_up.set()
    assert asked(renderer, "{{ 1 + 1 }}") == "2"
    for thread in threads:
        thread.join(60)
    renderer.close()


def test_who_gives_up_spoils_no_template_for_others() -> None:
    """What a template can do is found by the first who asks, and kept: also that it overran."""
    template = (
        "{# tried by one who left #}{% for m in messages %}{{ m.content }}{% endfor %}" + "{##}" * 50_000
    )
    GIVEN_UP.set(gone := threading.Event())
    gone.set()
    with suppress(TemplateError):
        compose(template, USER)
    GIVEN_UP.set(None)
    assert compose(template, USER).text == "Hi"


def test_memory_is_watched_where_the_system_does_not_limit_it() -> None:
    """macOS and Windows."""
    task = Task(Limits(memory=1 << 20, memory_factor=1), 1 << 20, time.monotonic())
    used = SimpleNamespace(
        memory_info=lambda: SimpleNamespace(rss=(2 << 20) + 1), cpu_times=lambda: (0.0, 0.0, 0.0, 0.0)
    )
    assert overrun(used, task, 0.0) == "takes more than 2 MiB of memory"
    used.memory_info = lambda: SimpleNamespace(rss=2 << 20)
    assert overrun(used, task, 0.0) == ""
    old = Task(Limits(), 0, time.monotonic() - 61)
    assert overrun(used, old, 0.0) == "takes more than 60 s"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows has no fork")
def test_a_forked_process_starts_its_own() -> None:
    code = (
        "import os\nfrom edgespec.chat.template import render\n"
        "say = lambda text: render('{{ messages[0].content }}', [{'content': text}])\n"
        "assert say('a') == 'a'\n"
        "pid = os.fork()\n"
        "assert all(say(str(i)) == str(i) for i in range(50))\n"
        "assert pid == 0 or os.waitpid(pid, 0)[1] == 0\n"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_run_tells_it_in_one_sentence(tmp_path: Path) -> None:
    model = tiny_gguf.write_llama(tmp_path / "m.gguf", chat_template=GIANT)
    done = edgespec("run", "--target", model, "--no-draft", "hello")
    err = done.stderr.decode()
    assert (done.returncode, done.stdout) == (1, b"")
    assert err.startswith("edgespec: the chat template takes more than") and err.count("\n") == 1


@pytest.mark.slow
def test_a_server_with_an_endless_template_answers_and_ends(tmp_path: Path) -> None:
    """Two SIGTERMs did not end it, and one with a giant string kept 7.6 GB."""
    model = tiny_gguf.write_llama(
        tmp_path / "m.gguf",
        chat_template="{% if messages[0].content == 'giant' %}" + GIANT
        + "{% elif messages[0].content == 'endless' %}" + ENDLESS + "{% endif %}{{ messages[0].content }}",
    )  # fmt: skip
    with served(tmp_path, "--target", str(model), "--no-draft") as server:

        def ask() -> None:
            with suppress(OSError, HTTPException):  # it may be cut off
                server.chat("endless")

        refused = server.chat("giant")
        assert refused.status == 400, refused.body
        assert "the chat template takes more than" in refused.error["message"]
        assert server.chat("hello", max_tokens=2).status == 200
        web = psutil.Process(server.process.pid)
        assert web.memory_info().rss < 1 << 30
        asking = threading.Thread(target=ask)
        asking.start()
        until(lambda: any(busy(child) for child in web.children()), 60)
        assert server.ask("/health").status == 200
        for _ in range(2):
            server.process.send_signal(signal.SIGTERM)
            time.sleep(0.1)
        assert server.process.wait(60) == 0
        asking.join(60)


def busy(child: psutil.Process) -> bool:
    """Whether it is a renderer that has worked for a while."""
    return "edgespec.chat.sandbox" in child.cmdline() and sum(child.cpu_times()[:2]) > 0.5
