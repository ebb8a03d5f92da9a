"""The pair: may the draft guess for the target, do both fit into memory, and does speculation pay?"""

from dataclasses import asdict
from math import prod
from pathlib import Path
from typing import Any

from edgespec.commands.doctor.findings import Finding
from edgespec.errors import EdgeSpecError, ModelUnsupportedError
from edgespec.memory.at_load import ONE_AT_A_TIME, pair_fit, projector_need
from edgespec.pairs.check import check_pair, find_head, headers_of
from edgespec.pairs.projector import projector_of, reads_of
from edgespec.pairs.settings import PairSettings
from edgespec.system.builds import REBUILD, reads_media
from edgespec.system.json_child import ChildDiedError, JsonChild
from edgespec.system.other_programs import BUSY_CORES
from edgespec_models.fit.fit import SMALLER, Fit, gib
from edgespec_models.fit.need import Need
from edgespec_models.gguf.facts import facts_of, why_not_usable
from edgespec_models.gguf.head_check import own_head
from edgespec_models.gguf.header import Header, HeaderError, read_file
from edgespec_models.shelf.pair_check import check_headers

ENOUGH_GUESSES, ENOUGH_PROMPTS = 30, 4  # for a statement on whether it pays
LONGER = "--seconds 60 measures longer"
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
        return [*found, Finding("pair", "good", text, facts={"head": head.kind})]
    check_pair(target, draft)
    verdict = check_headers(headers[0][0], headers[1][0])
    text = f"{verdict}: the draft may guess for the target"
    may = Finding("pair", "good", text, facts={"fit": verdict.fit})
    return [*found, *_model("draft", draft, headers[1][0]), may]


def _model(role: str, path: Path, header: Header) -> list[Finding]:
    facts = facts_of(header)
    alone = facts.memory in ONE_AT_A_TIME
    parts = (facts.architecture, facts.size_label, facts.quantisation, f"memory: {facts.memory_text}")
    text = f"{role} {path.name}: {', '.join(filter(None, parts))}"
    text += ", which cannot drop single tokens: it serves one request at a time" if alone else ""
    details = {"role": role, "file": str(path), "architecture": facts.architecture, "memory": facts.memory}
    found = [Finding("pair", "note" if alone else "good", text, facts=details)]
    if role == "target" and not facts.has_template:
        text = f"{path.name} has no chat template: conversations are written as ChatML"
        remedy = "choose another with --chat-template NAME or --chat-template-file"
        found.append(Finding("pair", "note", text, remedy))
    return found


def _without_draft(target: list[Header]) -> Finding:
    head, why_not = own_head(target)
    if head and why_not is None:
        text = f"the {head.name} in the target's file guesses"
        return Finding("pair", "good", text, facts={"head": head.kind})
    text = "no draft model: guesses come from the text alone"
    if head:
        text = f"the {head.name} in the target's file is not run: {why_not}"
    elif sum(prod(tensor.shape) for tensor in target[0].tensors) < 4e8:  # published drafts: 1.35e8
        return Finding("pair", "good", f"{text}; for so small a target hardly any draft is cheap enough")
    remedy = f"a small model of the same family as --draft would guess more: {OWN}"
    return Finding("pair", "note", text, remedy)


def projector(target: Path, asked: str) -> list[Finding]:
    """Checks whether the target's projector can be used, if it has one. asked: by --mmproj."""
    path = projector_of(target, asked)
    if path is None:
        return []
    text = f"projector {path.name} reads {' and '.join(reads_of(read_file(path)))}"
    if reads_media():
        return [Finding("pair", "good", text, facts={"file": str(path)})]
    return [Finding("pair", "problem", f"{text}, but this build of llama.cpp cannot", REBUILD)]


def fit(target: Path, draft: Path | None, settings: PairSettings) -> list[Finding]:
    """Checks whether the pair fits, asking llama.cpp, which also says how attention is evaluated then."""
    try:
        eyes = projector_need(projector_of(target, settings.mmproj))
        found = pair_fit(target, draft, settings, projector=eyes)
    except (HeaderError, EdgeSpecError) as error:
        return [Finding("memory", "note", f"the memory that the pair takes is unknown: {error}")]
    name = " and ".join(path.name for path in (target, draft) if path)
    text = f"{found.attention} (docs/exactness.md says what digits depend on then)"
    attention = [Finding("attention", "good", text)] if found.attention else []
    return [_memory(found, name, eyes), *attention]


def _memory(found: Fit, name: str, projector: Need | None) -> Finding:
    choice, taken = found.choice, projector.total if projector else 0
    facts = {**asdict(choice), "total": choice.total, "projector": taken}
    if not found.fits:
        remedy = " or ".join(found.proposals) or SMALLER
        return Finding("memory", "problem", found.sentence(name), remedy, facts)
    text = found.sentence("the pair")
    text += f"; its projector {gib(taken)} more" if projector else ""
    text += f": {found.where}" if found.where else ""
    remedy = "free memory, or choose a smaller model, to have all of it" if found.gave_up else ""
    return Finding("memory", "note" if found.gave_up else "good", text, remedy, facts)


def speculation(target: Path, draft: Path | None, settings: PairSettings, seconds: float) -> list[Finding]:
    """Runs the pair with and without speculation for about `seconds` after loading."""
    pair = {"target": str(target), "draft": str(draft) if draft else None, "settings": asdict(settings)}
    with JsonChild("edgespec.measure.short_run") as child:
        try:
            return judged(child.ask({**pair, "seconds": seconds, "tokens": 48}))
        except ChildDiedError as error:
            return judged({"error": str(error)})


def judged(measured: dict[str, Any]) -> list[Finding]:
    """Returns what a measurement means."""
    if reason := measured.get("error"):
        return [Finding("speculation", "problem", f"the pair cannot be run: {reason}", "docs/doctor.md")]
    if not measured["prompts"] or measured["plain_tok_per_s"] is None:
        text = "nothing could be measured in this time"
        return [Finding("speculation", "note", text, LONGER, measured)]
    n, accepted = measured["drafted"], measured["accepted"]
    if not n:
        text = "speculation is on, and nothing was guessed: guesses were found not to pay off here"
        return [Finding("speculation", "note", text, _costs(measured), {"drafted": 0})]
    by = ", ".join(f"{name} {n}" for name, n in sorted(measured["sources"].items()) if n and name != "target")
    text = (
        f"speculation is on: {n} token{'s'[: n != 1]} guessed, {accepted} accepted{f' ({by})' if by else ''}"
    )
    facts = {"drafted": n, "accepted": accepted}
    return [Finding("speculation", "good", text, facts=facts), _pays(measured)]


def _pays(measured: dict[str, Any]) -> Finding:
    """Says whether it pays, if the interval of the speed-up leaves no doubt."""
    n, ratio = measured["prompts"], measured["speedup"] or {}
    text = f"{measured['tok_per_s']:.1f} tok/s with speculation, {measured['plain_tok_per_s']:.1f} without, "
    text += f"{n} prompt{'s'[: n != 1]}"
    if measured["others"] >= BUSY_CORES:
        text += f"; other programs kept {measured['others']:.1f} cores busy during it"
    if measured["drafted"] < ENOUGH_GUESSES or n < ENOUGH_PROMPTS or ratio.get("low") is None:
        text += ": too little was measured to say whether it pays off"
        return Finding("speculation", "note", text, LONGER, measured)
    text += f": {ratio['value']:.2f} times (95 %: {ratio['low']:.2f} to {ratio['high']:.2f})"
    if ratio["low"] > 1:
        return Finding("speculation", "good", text, facts=measured)
    verdict, remedy = "it is unclear whether it pays off here", LONGER
    if ratio["high"] < 1:
        verdict, remedy = "it does not pay off here", "use --no-draft with this pair"
    remedy = f"{remedy}; {_costs(measured)}"
    return Finding("speculation", "note", f"{text}: {verdict}", remedy, measured)


def _costs(measured: dict[str, Any]) -> str:
    """Returns what decides whether guesses pay, as measured, and the page on it."""
    one, four, rate = measured["target_s"]["1"], measured["target_s"]["4"], measured["acceptance_rate"]
    guess = f"a guess {measured['draft_s'] / one:.0%} of that, " if measured["draft_s"] else ""
    accepted = "" if rate is None else f", {rate:.0%} of the guesses were accepted"
    facts = f"a token takes {1000 * one:.1f} ms, {guess}four tokens at once {four / one:.1f} times that"
    return f"{facts}{accepted}: docs/doctor.md#when-guesses-do-not-pay"
