"""A pair on another engine: that engine's own parser accepts what is printed."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from argparse import ArgumentParser, Namespace
from dataclasses import replace
from pathlib import Path

import engine_flags
import pytest
from tiny_gguf import write_llama

from edgespec.commands.export import command, wanted
from edgespec.commands.export.engines import EXPORTS, Engine
from edgespec.commands.export.exported import Exported, ExportedModel, Guesses, base_of, of_catalogue, of_file
from edgespec.commands.export.length import by_what_is_known
from edgespec.core.pace.cost_table import CostTable
from edgespec.core.pace.costs import Costs
from edgespec.engine.experience import Experience, Knowledge
from edgespec.errors import SettingError
from edgespec_models.gguf.header import Header, read_file
from edgespec_models.shelf.catalogue import CatalogueEntry, catalogue

FLAGS = json.loads(engine_flags.KEPT.read_text())
HERE = Exported(
    "mine",
    ExportedModel(Path("/m/big model-Q4_K_M.gguf"), base="o/big"),
    ExportedModel(Path("/m/small-Q8_0.gguf"), base="o/small"),
    "draft",
    5,
    "measured",
    4096,
)
A_HEAD: tuple[Guesses, ...] = ("mtp", "eagle3", "dflash", "dspark")


def _on_the_hub(entry: CatalogueEntry) -> Exported:
    return of_catalogue(entry, n_ctx=8192, length=4, length_from="usual")


def _every_way() -> list[Exported]:
    """A pair with each kind of guesser, one without, and one whose vocabularies differ."""
    with_heads = [replace(HERE, guesses=kind) for kind in A_HEAD]
    alone = replace(HERE, draft=None, guesses=None)
    return [HERE, *with_heads, replace(with_heads[0], draft=None), alone, replace(HERE, translated=True)]


def _flags(words: tuple[str, ...]) -> list[str]:
    return [word for word in words if word.startswith("--")]


@pytest.mark.parametrize("pair", [*map(_on_the_hub, catalogue()), *_every_way()], ids=lambda pair: pair.name)
def test_large_engines_know_every_flag(pair: Exported) -> None:
    """vLLM's and SGLang's argument classes want torch: their sources were read (engine_flags.py)."""
    vllm, sglang = FLAGS["vllm"], FLAGS["sglang"]
    words = EXPORTS["vllm"](pair).words
    assert words[:2] == ("vllm", "serve") and not words[2].startswith("-")
    assert set(_flags(words)) <= set(vllm["flags"])
    if "--speculative-config" in words:
        config = json.loads(words[words.index("--speculative-config") + 1])
        assert set(config) <= set(vllm["fields"]) and config["method"] in vllm["methods"]
        assert config.get("draft_sample_method", "greedy") in vllm["draft_sample_methods"]
        assert config["num_speculative_tokens"] == pair.length
    words = EXPORTS["sglang"](pair).words
    assert set(_flags(words)) <= set(sglang["flags"])
    if "--speculative-algorithm" in words:
        assert words[words.index("--speculative-algorithm") + 1] in sglang["algorithms"]
    guesses = pair.guesses is not None
    assert guesses == ("--speculative-config" in EXPORTS["vllm"](pair).words)
    assert (guesses and not pair.translated) == ("--speculative-algorithm" in words)


@pytest.mark.parametrize("pair", _every_way(), ids=lambda pair: f"{pair.guesses}")
def test_a_modelfile_has_what_ollama_parses(pair: Exported) -> None:
    text = EXPORTS["ollama"](pair).text
    lines = [line.split(" ", 1) for line in text.splitlines()]
    assert lines[0] == ["FROM", "/m/big model-Q4_K_M.gguf"]
    assert {line[0] for line in lines} <= set(FLAGS["ollama"]["commands"])
    parameters = dict(rest.split() for name, rest in lines if name == "PARAMETER")
    assert set(parameters) <= set(FLAGS["ollama"]["parameters"])
    guesses = pair.guesses is not None and not pair.translated
    assert parameters.get("draft_num_predict") == ("5" if guesses else None)
    assert ("DRAFT" in text) == bool(guesses and pair.draft)


def test_ollama_wants_files_of_this_machine() -> None:
    with pytest.raises(SettingError, match="`edgespec pull qwen3-8b` gets it"):
        EXPORTS["ollama"](_on_the_hub(next(entry for entry in catalogue() if entry.name == "qwen3-8b")))


def test_a_modelfile_cannot_name_a_file_on_two_lines() -> None:
    broken = replace(HERE, target=ExportedModel(Path("/m/big\nFROM other.gguf"), base="o/big"))
    with pytest.raises(SettingError, match=r"rename '/m/big\\nFROM other.gguf'"):
        EXPORTS["ollama"](broken)


# -- llama-server


LLAMA_SERVER = os.environ.get("EDGESPEC_LLAMA_SERVER") or shutil.which("llama-server")


@pytest.mark.slow
@pytest.mark.skipif(not LLAMA_SERVER, reason="no llama-server: name one with EDGESPEC_LLAMA_SERVER")
@pytest.mark.parametrize("pair", [*map(_on_the_hub, catalogue()), *_every_way()], ids=lambda pair: pair.name)
def test_llama_server_parses_what_is_exported(pair: Exported) -> None:
    """Flags are handled in their order: `--version` at the end says that all before were understood."""
    words = EXPORTS["llama-server"](pair).words[1:]
    for more, code in (((), 0), (("--no-such-flag",), 1)):
        done = subprocess.run(
            [str(LLAMA_SERVER), *words, *more, "--version"], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == code, done.stderr


@pytest.mark.parametrize(
    ("pair", "words"),
    [
        (
            HERE,
            "llama-server --model '/m/big model-Q4_K_M.gguf' --ctx-size 4096 --spec-draft-model "
            "/m/small-Q8_0.gguf --spec-type draft-simple --spec-draft-n-max 5",
        ),
        (
            replace(HERE, draft=None, guesses="mtp"),
            "llama-server --model '/m/big model-Q4_K_M.gguf' --ctx-size 4096 --spec-type draft-mtp "
            "--spec-draft-n-max 5",
        ),
        (
            _on_the_hub(next(entry for entry in catalogue() if entry.name == "qwen3-4b")),
            "llama-server --hf-repo ggml-org/Qwen3-4B-GGUF --hf-file Qwen3-4B-Q4_K_M.gguf --ctx-size 8192 "
            "--spec-draft-hf ggml-org/Qwen3-0.6B-GGUF:Q8_0 --spec-type draft-simple --spec-draft-n-max 4",
        ),
        (replace(HERE, translated=True), "llama-server --model '/m/big model-Q4_K_M.gguf' --ctx-size 4096"),
    ],
    ids=["files", "mtp", "hub", "translated"],
)
def test_llama_server_gets_the_same_files(pair: Exported, words: str) -> None:
    """A draft alone has never speculated there since 2026: a type goes with it."""
    assert EXPORTS["llama-server"](pair).text == words


# -- repositories


def test_a_repository_is_taken_from_what_can_be_believed(tmp_path: Path) -> None:
    """A header's base_model is mostly what a model was tuned from: Qwen2.5-Coder-7B of its Instruct, say."""

    def base(name: str, **said: str) -> str:
        metadata = {f"general.{key.replace('__', '.')}": value for key, value in said.items()}
        return of_file(Path(name), Header(name=name, metadata=metadata, **_rest(tmp_path)), None).base

    hub = "https://huggingface.co/"
    tuned = {"base_model__0__repo_url": f"{hub}Qwen/Qwen2.5-Coder-7B"}
    assert base("Qwen2.5-Coder-7B-Instruct-Q4_K_M.gguf", **tuned) == ""
    assert base("qwen2.5-coder-7b-q8_0.gguf", **tuned) == "Qwen/Qwen2.5-Coder-7B"
    assert base("x-Q4_0.gguf", repo_url=f"{hub}o/x", **tuned) == "o/x"
    assert base("x-Q4_0.gguf", repo_url=f"{hub}o/x-GGUF") == ""
    with pytest.raises(SettingError, match="vLLM does not read GGUF.*--target-repo OWNER/NAME"):
        base_of(ExportedModel(Path("x.gguf")), "--target-repo", "vLLM")


def _rest(tmp_path: Path) -> dict[str, object]:
    header = read_file(write_llama(tmp_path / "any.gguf", seed=1))
    return {
        name: getattr(header, name)
        for name in header.__dataclass_fields__
        if name not in ("name", "metadata") and header.__dataclass_fields__[name].init
    }


# -- lengths, and the command itself


def test_the_length_is_what_would_pay_best_of_what_was_seen() -> None:
    costs = Costs(CostTable({1: 1.0, 2: 1.1, 4: 1.3, 8: 1.7, 49: 9.0}), CostTable({1: 0.05}))
    good, unknown, poor = Experience(), Experience(), Experience()
    good.model.accepted[5], good.model.seen[5] = 90.0, 100.0
    poor.model.accepted[5], poor.model.seen[5] = 1.0, 100.0
    found = by_what_is_known(Knowledge(costs, {"sampled": good}))
    assert found and found.accepted == 0.9 and 6 <= found.length <= 12
    assert by_what_is_known(Knowledge(costs, {"sampled": poor})).length == 1  # type: ignore[union-attr]
    assert by_what_is_known(Knowledge(costs, {"sampled": unknown})) is None
    assert by_what_is_known(Knowledge(None, {"sampled": good})) is None


def _asked(*argv: str) -> Namespace:
    parser = ArgumentParser()
    command.add(parser)
    return parser.parse_args(argv)


def test_the_embedded_pair_is_exported_with_the_length_that_it_has_shown(
    capsys: pytest.CaptureFixture[str], tiny_target: Path, tiny_draft: Path
) -> None:
    from edgespec.core.request import Request
    from edgespec.engine.pair import Pair
    from edgespec.pairs.settings import PairSettings
    from edgespec.sampling.sampler import Sampling

    assert command.run(_asked("embedded", "--to", "llama-server")) == 0
    assert "a usual length, because the pair has not run here" in capsys.readouterr().err
    with Pair(tiny_target, tiny_draft, PairSettings(n_ctx=512)) as pair:
        pair.costs()
        goes_on = dict.fromkeys(pair.target.end_tokens, -1e9)
        request = Request(Sampling(temperature=0, logit_bias=goes_on), 150, drafter="model", draft_length=4)
        assert list(pair.generate(pair.prompt_tokens("def mean(values):"), request))
    assert command.run(_asked("embedded", "--to", "llama-server")) == 0
    out, err = capsys.readouterr()
    words = shlex.split(out)
    assert words[words.index("--model") + 1] == str(tiny_target)
    assert f"{words[-1]} is the fastest on this machine" in err
    for engine in ("vllm", "sglang"):
        with pytest.raises(SettingError, match="the repository target.gguf was made from"):
            command.run(_asked("embedded", "--to", engine))
    assert command.run(_asked("embedded", "--to", "vllm", "--no-draft", "--target-repo", "o/x")) == 0
    assert capsys.readouterr().out == "vllm serve o/x --max-model-len 2048\n"


@pytest.mark.parametrize("engine", ["llama-server", "vllm", "sglang"])
def test_a_pair_of_the_catalogue_need_not_be_here(engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.run(_asked("qwen3-8b", "--to", engine, "--draft-length", "7", "--ctx", "1024")) == 0
    out, err = capsys.readouterr()
    assert re.search(r"\b7\b", out) and "1024" in out
    assert "7 is as --draft-length says" in err and out.count("\n") == 1


def test_a_context_is_exported_as_long_as_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    """The embedded target was trained for 2,048 tokens."""
    for asked, said in (("--ctx", "4096"), "4096"), ((), "2048"):
        words = ("embedded", "--to", "vllm", "--no-draft", "--target-repo", "o/x", *asked)
        assert command.run(_asked(*words)) == 0
        assert capsys.readouterr().out == f"vllm serve o/x --max-model-len {said}\n"


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        (("qwen3-4", "--to", "vllm"), "did you mean qwen3-4b"),
        (("embedded", "--to", "ollama", "--ctx", "0"), "--ctx is 0"),
        (("embedded", "--to", "ollama", "--draft-length", "49"), "--draft-length is 49"),
        (("embedded", "--to", "vllm", "--target-repo", "here"), "no repository"),
        (("embedded", "--to", "vllm", "--target", "a.gguf"), "leave out --target"),
    ],
)
def test_nonsense_is_refused(argv: tuple[str, ...], why: str) -> None:
    with pytest.raises(SettingError, match=why):
        command.run(_asked(*argv))


def test_nothing_is_exported_that_was_not_asked_for() -> None:
    assert wanted.exported(_asked("qwen3-8b", "--to", "vllm", "--no-draft")).draft is None
