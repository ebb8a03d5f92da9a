"""The pair: may the draft guess for the target, and do both fit into memory?"""

from dataclasses import asdict
from math import prod
from pathlib import Path

from edgespec.commands.doctor.findings import Finding, good, note, problem
from edgespec.errors import EdgeSpecError, ModelUnsupportedError
from edgespec.memory.at_load import pair_fit, projector_need
from edgespec.pairs.check import check_pair, find_head, headers_of
from edgespec.pairs.projector import projector_of, reads_of
from edgespec.pairs.rope import beyond_trained
from edgespec.pairs.settings import PairSettings
from edgespec.system.builds import REBUILD, reads_media
from edgespec_models.fit.fit import SMALLER, Fit, gib
from edgespec_models.fit.need import Need
from edgespec_models.gguf.facts import facts_of, why_not_usable
from edgespec_models.gguf.head_check import own_head
from edgespec_models.gguf.header import Header, HeaderError, read_file
from edgespec_models.shelf.pair_check import check_headers

SMALL = 4e8  # parameters: published drafts begin at 135 million
OWN = "docs/pairs.md#your-own-models"


def pair(target: Path, draft: Path | None) -> list[Finding]:
    """Checks files and vocabularies as loading does, before weights are read. Raises EdgeSpecError."""
    head = find_head(target, draft)
    headers = [headers_of(path) for path in (target, draft) if path]
    if reason := why_not_usable(headers[0][0]):
        raise ModelUnsupportedError(reason)
    found = _model("target", target, headers[0][0])
    if draft is None:
        return [*found, _without_draft(headers[0])]
    if head:
        text = f"{draft.name} is {head.a_name}, and may guess for the target"
        return [*found, good("pair", text, head=head.kind)]
    check_pair(target, draft)
    verdict = check_headers(headers[0][0], headers[1][0])
    found += _model("draft", draft, headers[1][0])
    found.append(good("pair", f"{verdict}: the draft may guess for the target", fit=verdict.fit))
    sizes = [sum(tensor.n_bytes or 0 for header in of for tensor in header.tensors) for of in headers]
    if sizes[1] * 3 > sizes[0]:
        text = f"the draft is {sizes[1] / sizes[0]:.0%} of the target's size: its guesses are expensive"
        found.append(note("pair", text, "a draft of a tenth of the target or less usually gains more"))
    return found


def _model(role: str, path: Path, header: Header) -> list[Finding]:
    facts = facts_of(header)
    parts = (facts.architecture, facts.size_label, facts.quantisation, f"memory: {facts.memory_text}")
    text = f"{role} {path.name}: {', '.join(filter(None, parts))}"
    details = {"role": role, "file": str(path), "architecture": facts.architecture, "memory": facts.memory}
    found = [good("pair", text, **details)]
    if facts.memory in ("hybrid", "recurrent"):
        text += ", which cannot drop single tokens: it serves one request at a time"
        found = [note("pair", text, **details)]
    if role == "target" and not facts.has_template:
        remedy = "choose another with --chat-template NAME or --chat-template-file"
        text = f"{path.name} has no chat template: conversations are written as ChatML"
        found.append(note("pair", text, remedy))
    return found


def _without_draft(target: list[Header]) -> Finding:
    head, why_not = own_head(target)
    if head and why_not is None:
        return good("pair", f"the {head.name} in the target's file guesses", head=head.kind)
    text = "no draft model: guesses come from the text alone"
    if head:
        text = f"the {head.name} in the target's file is not run: {why_not}"
    elif sum(prod(tensor.shape) for tensor in target[0].tensors) < SMALL:
        return good("pair", f"{text}; for so small a target hardly any draft is cheap enough")
    return note("pair", text, f"a small model of the same family as --draft would guess more: {OWN}")


def projector(target: Path, asked: str) -> list[Finding]:
    """Checks whether the target's projector can be used, if it has one. asked: by --mmproj."""
    path = projector_of(target, asked)
    if path is None:
        return []
    text = f"projector {path.name} reads {' and '.join(reads_of(read_file(path)))}"
    if reads_media():
        return [good("pair", text, file=str(path))]
    return [problem("pair", f"{text}, but this build of llama.cpp cannot", REBUILD, file=str(path))]


def fit(target: Path, draft: Path | None, settings: PairSettings) -> list[Finding]:
    """Checks whether the pair fits, asking llama.cpp, which also says how attention is evaluated then."""
    trained = headers_of(target)[0].of_architecture("context_length")
    beyond = beyond_trained(target.name, settings.n_ctx or 0, trained, settings.rope)
    notes = [note("context", beyond, f"--ctx {trained}, or less, if they do")] if beyond else []
    try:
        eyes = projector_need(projector_of(target, settings.mmproj))
        found = pair_fit(target, draft, settings, projector=eyes)
    except (HeaderError, EdgeSpecError) as error:
        return [*notes, note("memory", f"the memory that the pair takes is unknown: {error}")]
    name = " and ".join(path.name for path in (target, draft) if path)
    return [*notes, _memory(found, name, eyes), *_attention(found)]


def _memory(found: Fit, name: str, projector: Need | None) -> Finding:
    choice = found.choice
    facts = {
        "n_ctx": choice.n_ctx,
        "total": choice.total,
        "n_gpu_layers": choice.n_gpu_layers,
        "needs": {model: need.total for model, need in choice.needs.items()},
        "parts": {model: asdict(need.parts) for model, need in choice.needs.items()},
        "devices": {device.name: choice.on(device.name) for device in found.devices},
        "projector": projector.total if projector else 0,
    }
    if not found.fits:
        return problem("memory", found.sentence(name), " or ".join(found.proposals) or SMALLER, **facts)
    text = found.sentence("the pair")
    text += f"; its projector {gib(projector.total)} more" if projector else ""
    text += f": {found.where}" if found.where else ""
    if found.gave_up:
        return note("memory", text, "free memory, or choose a smaller model, to have all of it", **facts)
    return good("memory", text, **facts)


def _attention(found: Fit) -> list[Finding]:
    """Says whether the models have flash attention, why, and what that means for the target's digits."""
    target = found.choice.needs["target"].attention
    if target is None or target.on is None:  # unknown, or a card decides
        return []
    digits = (
        "depend on the number of threads, which stays within a text"
        if target.on
        else "do not depend on the number of threads"
    )
    text = f"{found.attention}; digits {digits}; --byte-identical rules out all such differences"
    needs = found.choice.needs.items()
    return [good("attention", text, **{model: need.attention.on for model, need in needs if need.attention})]
