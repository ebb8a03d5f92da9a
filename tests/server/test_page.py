"""The page at `/`, its buttons pressed in a browser."""

from __future__ import annotations

from pathlib import Path

import pytest
from browser import browsed
from served import served, until
from tiny_gguf import write_llama

from edgespec_models import tiny
from edgespec_models.shelf.store import InstalledModel, InstalledPair, Store

ASK = """
at("question").value = "What is EdgeSpec?"; at("beside").checked = true; at("ask").requestSubmit(); 1
"""


@pytest.mark.slow
def test_buttons_copy_load_unload_and_send(tmp_path: Path) -> None:
    target = write_llama(tmp_path / "two.gguf", seed=2)
    store = Store(tmp_path / "data")
    store.add(
        InstalledPair("other", InstalledModel((str(target),), target.stat().st_size), None, "imported", 0)
    )
    files = ("--target", str(tiny.target_path()), "--draft", str(tiny.draft_path()))
    flags = (*files, "--alias", "first", "--ctx", "512")
    with (
        served(tmp_path, *flags, EDGESPEC_DATA_DIR=str(tmp_path / "data")) as server,
        browsed(server.url.removesuffix("v1")) as page,
    ):
        until(lambda: page.value("document.querySelector('#chat:not([hidden])') !== null"))
        for i in range(page.value("document.querySelectorAll('.copy').length")):
            page.value(f"document.querySelectorAll('.copy')[{i}].click()")
            until(lambda i=i: page.value(f"document.querySelectorAll('.copy')[{i}].textContent") == "Copied")
            lines = page.value(f"document.querySelectorAll('.setup pre')[{i}].textContent")
            assert page.value("navigator.clipboard.readText()") == lines

        def states() -> list[str]:
            found: list[str] = page.value(
                "[...document.querySelectorAll('#now td:last-child')].map(x=>x.innerText)"
            )
            return found

        until(lambda: states() == ["loaded unload", "load"])
        for model, after in (
            ("other", ["loaded unload", "loaded unload"]),
            ("first", ["loaded unload", "load"]),
            ("first", ["loaded unload", "loaded unload"]),
        ):
            page.value(f"document.querySelector('.change[data-model={model}]').click()")
            until(lambda after=after: states() == after)
        page.value(ASK)
        told = "[...document.querySelectorAll('.figures')].map(x=>x.innerText)"
        until(lambda: page.value("!at('send').disabled"))
        assert len(page.value(told)) == 2 and all("tok/s" in text for text in page.value(told))
        for scheme in ("light", "dark"):
            for width in (400, 1400):
                page.shown_as(width, scheme)
                assert page.value("document.documentElement.scrollWidth") <= width, "nothing is cut off"
                page.picture(tmp_path / f"{scheme}{width}.png")
