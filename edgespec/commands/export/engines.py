"""A pair -> the command or file of another engine, and what will differ there.

Flags and names are those of llama.cpp as llama-cpp-python 0.3.36 has it, vLLM 0.33.0, SGLang 0.5.23 and
Ollama's Modelfile of November 2026; tests hold them against the engines' own parsers or lists.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from edgespec.commands.export.exported import Exported, ExportedModel, Guesses, base_of
from edgespec.errors import SettingError

Engine = Literal["llama-server", "vllm", "sglang", "ollama"]


@dataclass(frozen=True, slots=True)
class Export:
    """What to run or to write, and what to know about it."""

    words: tuple[str, ...] = ()  # of a command
    file: str = ""  # or the text of a file
    notes: tuple[str, ...] = field(default=())

    @property
    def text(self) -> str:
        """What is printed."""
        return self.file or shlex.join(self.words)


def _left_out(pair: Exported, engine: str) -> list[str]:
    """Returns why an engine does not use this drafter; empty if it does."""
    if pair.translated and engine != "vLLM":
        return [f"{engine} does not translate between vocabularies: without the draft"]
    return []


def llama_server(pair: Exported) -> Export:
    """Returns llama-server's command: the same files, so the same texts."""
    words = ["llama-server", *_gguf(pair.target, "--model", "--hf-repo", "--hf-file")]
    words += ["--ctx-size", str(pair.n_ctx)]
    notes = _left_out(pair, "llama-server")
    guesses, draft = pair.guesses, pair.draft
    if guesses and not notes:
        if draft and draft.path:
            words += ["--spec-draft-model", str(draft.path)]
        elif draft:
            words += ["--spec-draft-hf", f"{draft.repo}:{draft.quant}" if draft.quant else draft.repo]
        kind = "draft-simple" if guesses == "draft" else f"draft-{guesses}"
        words += ["--spec-type", kind, "--spec-draft-n-max", str(pair.length)]
        notes.append(f"drafts are {pair.length} tokens long, whatever they cost and gain")
        notes.append("sampled answers gain less: a guess counts only if the target draws exactly that token")
    return Export(tuple(words), notes=tuple(notes))


def _gguf(model: ExportedModel, path: str, repo: str, file: str) -> list[str]:
    return [path, str(model.path)] if model.path else [repo, model.repo, file, model.file]


def ollama(pair: Exported) -> Export:
    """Returns the Modelfile; Ollama's own template and sampling defaults go with it."""
    for model in filter(None, (pair.target, pair.draft)):
        if model.path is None:
            raise SettingError(
                f"a Modelfile names files, and pair {pair.name} is not on this machine: `edgespec pull "
                f"{pair.name}` gets it"
            )
        if len(f"{model.path}".splitlines()) > 1:
            raise SettingError(f"a Modelfile has a name on one line: rename {str(model.path)!r}")
    lines = [f"FROM {pair.target.path}"]
    notes = ["ollama create NAME -f Modelfile", "Ollama formats the conversation with its own template"]
    left_out = _left_out(pair, "Ollama")
    if pair.guesses and not left_out:
        lines += [f"DRAFT {pair.draft.path}"] if pair.draft else []
        lines.append(f"PARAMETER draft_num_predict {pair.length}")
        notes.append("older versions of Ollama reject DRAFT")
    notes += left_out
    lines.append(f"PARAMETER num_ctx {pair.n_ctx}")
    return Export(file="\n".join(lines), notes=tuple(notes))


def vllm(pair: Exported) -> Export:
    """Returns vLLM's command, on the weights that the files were made from."""
    base = base_of(pair.target, "--target-repo", "vLLM")
    words = ["vllm", "serve", base, "--max-model-len", str(pair.n_ctx)]
    bases, notes = [base], _left_out(pair, "vLLM")
    if pair.guesses and not notes:
        how: dict[str, object] = {"method": "draft_model" if pair.guesses == "draft" else pair.guesses}
        if pair.draft:
            how["model"] = base_of(pair.draft, "--draft-repo", "vLLM")
            bases.append(str(how["model"]))
        how["num_speculative_tokens"] = pair.length
        if pair.guesses == "draft":
            how["draft_sample_method"] = "probabilistic"  # as here: p / q, not one-hot guesses
        if pair.translated:
            how["use_heterogeneous_vocab"] = True
        words += ["--speculative-config", json.dumps(how)]
    return Export(tuple(words), notes=(*notes, *_large("vLLM", pair, bases)))


_SGLANG: Mapping[Guesses, str] = {
    "draft": "STANDALONE",
    "mtp": "NEXTN",
    "eagle3": "EAGLE3",
    "dflash": "DFLASH",
    "dspark": "DSPARK",
}


def sglang(pair: Exported) -> Export:
    """Returns SGLang's command, on the weights that the files were made from."""
    base = base_of(pair.target, "--target-repo", "SGLang")
    words = ["python", "-m", "sglang.launch_server", "--model-path", base]
    words += ["--context-length", str(pair.n_ctx)]
    bases, notes = [base], _left_out(pair, "SGLang")
    if pair.guesses and not notes:
        words += ["--speculative-algorithm", _SGLANG[pair.guesses]]
        if pair.draft:
            bases.append(base_of(pair.draft, "--draft-repo", "SGLang"))
            words += ["--speculative-draft-model-path", bases[-1]]
        if pair.guesses not in ("dflash", "dspark"):  # their length is that of the head's block
            words += ["--speculative-num-steps", str(pair.length), "--speculative-eagle-topk", "1"]
            words += ["--speculative-num-draft-tokens", str(pair.length + 1)]
    return Export(tuple(words), notes=(*notes, *_large("SGLang", pair, bases)))


def _large(engine: str, pair: Exported, bases: list[str]) -> tuple[str, ...]:
    """Says what differs on an engine for many users."""
    loads = " and ".join(bases)
    notes = [f"{engine} loads {loads}, from which the GGUF files were made: other rounding, so other texts"]
    if pair.target.quant not in ("", "F16", "BF16", "F32"):
        notes.append(f"these weights are not {pair.target.quant}, so several times as large")
    if pair.guesses:
        notes.append(
            f"drafts are {pair.length} tokens long; costs on a card differ, so try other lengths too"
        )
    return tuple(notes)


EXPORTS: Mapping[Engine, Callable[[Exported], Export]] = {
    "llama-server": llama_server,
    "vllm": vllm,
    "sglang": sglang,
    "ollama": ollama,
}
