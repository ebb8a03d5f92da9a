"""The child process that asks llama.cpp how much memory a model takes: questions on stdin, answers on stdout.

A model is opened with `no_alloc`: llama.cpp reads its header, plans all buffers and allocates only small
ones. The plan is in its log, to the hundredth of a MiB; the size of the weights has a function.
Logits rows are counted here, because it allocates them only when they are first asked for.
`LLAMA_LOAD_MODE_NONE` is needed with it: with a mapped file llama.cpp aborts (llama-model.cpp).
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import llama_cpp as C

from edgespec.errors import EdgeSpecError, ModelFileError
from edgespec.llama import remote
from edgespec.llama.attention import decided, with_attention
from edgespec.llama.devices import cards, cpu_features, devices
from edgespec.llama.heads.head_settings import (
    OF_NEXTN,
    as_target,
    head_settings,
    new_head_context,
    row_width,
)
from edgespec.llama.heads.hidden_rows import rows_kept
from edgespec.llama.log import listening
from edgespec.llama.memory_question import Question
from edgespec.llama.model import Model
from edgespec.llama.projector import loaded, mtmd_cpp
from edgespec.llama.settings import ContextSettings, new_context
from edgespec.pairs.placement import Rule, place_of
from edgespec.system.json_child import answer_questions
from edgespec_models.fit.need import RAM, Parts
from edgespec_models.gguf.header import HeaderError, read_file, split_names
from edgespec_models.gguf.heads import head_of

MIB = 2**20
_LAYER_OF_WEIGHTS = re.compile(r"load_tensors: layer +(\d+) assigned to device (\S+),")
_LAYER_OF_CACHE = re.compile(r"(\w+)[:,] layer +(\d+): dev = (\S+)")
_CACHE = re.compile(r"(\w+): size = +([0-9.]+) MiB \( *\d+ cells, .*\), ([KR]) \(")
_STATE = re.compile(r"DSV4 .* state buffer size = +([0-9.]+) MiB")
_COMPUTE = re.compile(r"sched_reserve: +(\S+) compute buffer size = +([0-9.]+) MiB")
_BLOCK = re.compile(r"blk\.(\d+)\.")
Devices = dict[str, Parts]
Models = dict[tuple[object, ...], tuple[Model, list[str]]]  # the one opened last


def answer(question: Question, models: Models) -> dict[str, Any]:
    """Returns what the model takes, device by device. models: the one opened last."""
    if question.target:
        return _of_head(question, question.target)
    key = question.path, question.n_gpu_layers, question.mtp, question.rpc, question.rules
    if key not in models:
        for model, _ in models.values():
            model.close()
        models.clear()
        with listening() as log:
            models[key] = (
                Model(
                    question.path,
                    n_gpu_layers=question.n_gpu_layers,
                    no_alloc=True,
                    mtp=question.mtp,
                    devices=remote.devices(question.rpc),
                    tensor_split=question.tensor_split,
                    rules=question.rules,
                ),
                log,
            )
    model, lines = models[key]
    settings, attention = decided(model, _settings(question))
    with listening() as log:
        C.llama_free(new_context(model, settings))
    found = _weights(model, lines, question.rules)
    _add_context(found, log, question.n_rows * model.n_vocab * 4)
    if question.mtp:
        settings = replace(settings, n_rows=question.n_seq)
        with listening() as log:
            C.llama_free(new_context(model, settings, mtp=True))
        kept = _rows_kept(int(C.llama_model_n_embd_out(model.handle)), question.n_seq)
        _add_context(found, log, question.n_seq * model.n_vocab * 4 + kept)
    return {**_as_json(model, found), "attention": attention}


def _of_head(question: Question, target: str) -> dict[str, Any]:
    """Returns what a head in a file of its own takes beside its target, with whose context it is made."""
    head = head_of([read_file(question.path)])
    if head is None:
        raise ModelFileError(f"{question.path} holds no head")
    with Model(target, n_gpu_layers=question.n_gpu_layers, no_alloc=True) as large, listening() as lines:
        with Model(
            question.path,
            n_gpu_layers=question.n_gpu_layers,
            no_alloc=True,
            head=True,
            rules=question.rules,
            mtp=head.kind in OF_NEXTN,
        ) as model:
            settings = _settings(question)
            of_target = with_attention(large, settings)
            context = new_context(large, of_target)
            settings = as_target(model, head_settings(settings, head), of_target)
            with listening() as log:
                C.llama_free(new_head_context(model, settings, head, context))
            C.llama_free(context)
            if head.kind == "assistant":  # the cache in the log is its target's
                log = [line for line in log if not _CACHE.match(line)]
            found = _weights(model, lines, question.rules)
            kept = _rows_kept(row_width(large, head), question.n_seq)
            _add_context(found, log, settings.n_rows * large.n_vocab * 4 + kept)
            return _as_json(model, found)


def _rows_kept(width: int, n_seq: int) -> int:
    """Returns the bytes of the hidden rows that are kept for a head."""
    return rows_kept(width) * 4 * width * n_seq


def _as_json(model: Model, found: Devices) -> dict[str, Any]:
    layers = int(C.llama_model_n_layer(model.handle)) + 1
    return {"devices": {name: asdict(parts) for name, parts in found.items()}, "n_layers": layers}


def _settings(question: Question) -> ContextSettings:
    return ContextSettings(
        n_ctx=question.n_ctx,
        n_seq=question.n_seq,
        cells=question.cells,
        n_rows=question.n_rows,
        kv_type=question.kv_type,
        flash_attention=question.flash_attention,
        threads=1,
    )


def _weights(model: Model, lines: list[str], rules: Sequence[Rule]) -> Devices:
    """Returns the bytes of the weights on each device, by the rules and by where llama.cpp put layers."""
    size = int(C.llama_model_size(model.handle))
    layers = {int(match[1]): _device(match[2]) for line in lines if (match := _LAYER_OF_WEIGHTS.match(line))}
    if set(layers.values()) <= {RAM} and not (layers and rules):
        return {RAM: Parts(weights=size)}
    found: Devices = {}
    last = max(layers)  # the output layer
    sizes = _tensor_sizes(model)
    tied = "output.weight" not in sizes
    for name, n_bytes in sizes.items():
        block = _BLOCK.match(name)
        where = RAM if name.startswith("token_embd") else layers[last]
        where = layers.get(int(block[1]), RAM) if block else where
        if (named := place_of(name, rules)) is not None:
            where = _device(named)
        _add(found, where, Parts(weights=n_bytes))
        if tied and name == "token_embd.weight" and layers[last] != RAM:
            _add(found, layers[last], Parts(weights=n_bytes))  # needed in both places
    return found


def _tensor_sizes(model: Model) -> dict[str, int]:
    """Returns the bytes of each tensor, of all the files a model is split into."""
    sizes: dict[str, int] = {}
    for name in split_names(model.path.name):
        for tensor in read_file(model.path.with_name(name)).tensors:
            sizes[tensor.name] = tensor.n_bytes or 0
    return sizes


def _add_context(found: Devices, log: Iterable[str], output: int) -> None:
    """Adds caches, states, logits rows and compute buffers, from the log."""
    _add(found, RAM, Parts(output=output))
    placed: list[str] = []  # devices of the layers of the cache that the next line sums up
    for line in log:
        if match := _LAYER_OF_CACHE.match(line):
            placed.append(_device(match[3]))
        elif match := _CACHE.match(line):
            n_bytes = round(float(match[2]) * MIB)
            for device in set(placed) or {RAM}:
                share = placed.count(device) / len(placed) if placed else 1.0
                part = round(n_bytes * share)
                _add(found, device, Parts(cache=part) if match[3] == "K" else Parts(state=part))
            placed = []
        elif match := _STATE.search(line):
            _add(found, RAM, Parts(state=round(float(match[1]) * MIB)))
        elif match := _COMPUTE.match(line):
            _add(found, _device(match[1]), Parts(compute=round(float(match[2]) * MIB)))


def _device(name: str) -> str:
    """Returns the device of a buffer or layer, by its name in the log: "CUDA0" is one, "CUDA_Host" is RAM.

    Those of other machines are "RPC0", and "RPC0[HOST:PORT]" for a buffer.
    """
    if name.startswith("RPC"):
        return remote.names.get(name.partition("[")[0], RAM)
    names = [card.name for card in cards()]
    return next((card for card in names if name == card or name == card + "_Mapped"), RAM)


def _add(found: Devices, device: str, parts: Parts) -> None:
    found[device] = found.get(device, Parts()) + parts


def main() -> None:
    """Answers line by line until there are no more questions."""
    models: Models = {}

    def say(asked: dict[str, Any]) -> dict[str, Any]:
        try:
            if "build" in asked:
                found = [asdict(device) for device in devices()]
                return {"devices": found, "features": cpu_features(), "rpc": remote.has_rpc()}
            if "devices" in asked:
                return {"devices": [asdict(card) for card in cards()]}
            if "projector" in asked:
                handle, taken = loaded(Path(asked["projector"]), None, on_gpu=True)
                mtmd_cpp().mtmd_free(handle)
                return {"devices": {name: asdict(parts) for name, parts in taken.items()}}
            for listed in ("rpc", "tensor_split"):  # JSON has no tuples
                asked[listed] = tuple(asked[listed])
            asked["rules"] = tuple((pattern, device) for pattern, device in asked["rules"])
            return answer(Question(**asked), models)
        except EdgeSpecError as error:
            return {"error": type(error).__name__, "message": str(error)}
        except HeaderError as error:
            return {"error": "ModelFileError", "message": str(error)}

    answer_questions(say)


if __name__ == "__main__":
    main()
