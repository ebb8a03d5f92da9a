"""The catalogue is compared with a hub, and differences are reported pair by pair."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny_gguf
from hub_models import as_large_as, model_bytes
from local_hub import LocalHub

from edgespec_models.hub.hub import Hub
from recipes.catalogue_check import main

MODEL = """[pair.{role}]
repo = "acme/{repo}"
file = "{repo}-Q4_0.gguf"
revision = "main"
size_gb = {size}
licence = "{licence}"
unverified = ["repo", "file", "size_gb", "gated"]
"""


def entry(
    name: str, *, draft: str = "small", context: int = 512, size: float = 0.1, licence: str = "mit"
) -> str:
    return (
        f'[[pair]]\nname = "{name}"\nclass = "tiny"\nuse = "chat"\ncontext = {context}\ngain = ""\n'
        'gain_from = "none"\nnotes = []\n'
        + MODEL.format(role="target", repo="big", size=size, licence=licence)
        + MODEL.format(role="draft", repo=draft, size=0.01, licence="mit")
    )


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with LocalHub() as local:
        model = model_bytes(tmp_path)
        local.add("acme/big", {"big-Q4_0.gguf": as_large_as(model, 100_000_000)}, licence="mit")
        local.add("acme/small", {"small-Q4_0.gguf": as_large_as(model, 10_000_000)}, licence="mit")
        other = as_large_as(model_bytes(tmp_path, texts=tiny_gguf.FOREIGN), 10_000_000)
        local.add("acme/other", {"other-Q4_0.gguf": other}, licence="mit")
        local.add("acme/gated", {"gated-Q4_0.gguf": b"x"}, licence="mit", gated=True, needs_token="hf_x")
        yield Hub(endpoint=local.endpoint, token=False, cache=tmp_path / "hub", offline=False)


def test_what_differs_is_told_pair_by_pair(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "pairs.toml"
    path.write_text(
        "\n".join(
            (
                entry("good"),
                entry("misfit", draft="other"),
                entry("gone", draft="none"),
                entry("closed", draft="gated"),
                entry("wrong", context=4096, size=0.2, licence="apache-2.0"),
            )
        )
    )
    assert main(["--catalogue", str(path), "good"], hub=hub) == 0
    assert "good: as written" in capsys.readouterr().out
    assert main(["--catalogue", str(path)], hub=hub) == 1
    text = capsys.readouterr().out
    assert "good: as written" in text
    assert "no longer unverified: target.file, target.gated, target.repo, target.size_gb, draft.file" in text
    assert "the draft does not fit: token 5 is " in text
    assert "has no acme/none" in text
    assert "draft: acme/gated is gated\n" in text and "accept its terms" in text
    assert "the target's context is 512, not 4,096" in text
    assert "target: big-Q4_0.gguf of acme/big has 100 MB, not 200 MB" in text
    assert "the licence of acme/big is mit, not apache-2.0" in text


def test_the_whole_catalogue_is_asked_for_and_what_is_missing_is_no_crash(
    hub: Hub, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([], hub=hub) == 1
    lines = capsys.readouterr().out.splitlines()
    assert sum(": differs" in line for line in lines) >= 12
    assert all("has no " in line for line in lines if line.startswith("  target"))
