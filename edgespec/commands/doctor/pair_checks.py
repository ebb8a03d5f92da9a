"""The pair: are its files sound, do target and draft share a vocabulary, do both fit, and does it pay?"""

from math import prod
from pathlib import Path
from typing import Any

from edgespec.commands.doctor.findings import Finding, good, note, problem
from edgespec.errors import EdgeSpecError
from edgespec.memory.at_load import pair_fit, projector_need
from edgespec.pairs.check import headers_of
from edgespec.pairs.projector import projector_of, reads_of
from edgespec.pairs.rope import beyond_trained
from edgespec.pairs.settings import PairSettings
from edgespec.system.builds import REBUILD, reads_media
from edgespec.system.other_programs import BUSY_CORES
from edgespec_models.fit.fit import SMALLER, Fit, gib
from edgespec_models.fit.need import Need, Parts
from edgespec_models.gguf.facts import facts_of, learned_positions, why_not_usable
from edgespec_models.gguf.head_check import own_head, why_not_driven
from edgespec_models.gguf.header import Header, HeaderError, read_file
from edgespec_models.gguf.heads import Head, head_of
from edgespec_models.shelf.pair_check import check_headers

SMALL = 4e8  # parameters: published drafts begin at 135 million
ENOUGH_GUESSES, ENOUGH_PROMPTS = 30, 4  # for a statement on whether it pays


def pair(target: Path, draft: Path | None) -> list[Finding]:
    """Checks files and vocabularies."""
    headers: list[Header] = []
    found: list[Finding] = []
    for role, path in (("target", target), ("draft", draft)):
        if path is None:
            continue
        try:
            of_file = headers_of(path)
            header = of_file[0]
        except HeaderError as error:
            return [
                *found,
                problem("pair", str(error), f"name another file with --{role}, or download it again"),
            ]
        head = head_of(of_file) if role == "draft" else None
        if head and head.alone:
            return [*found, _head_file(target, path, head)]
        if reason := why_not_usable(header):
            return [*found, problem("pair", reason, f"name a model that generates text with --{role}")]
        headers.append(header)
        found.append(_model(role, path, header))
        if role == "target" and not facts_of(header).has_template:
            text = f"{path.name} has no chat template: conversations are written as ChatML"
            found.append(
                note("pair", text, "choose another with --chat-template NAME or --chat-template-file")
            )
    if draft is None:
        head, why_not = own_head(headers_of(target))
        if head and why_not is None:
            text = f"the {head.name} in the target's file guesses"
            return [*found, good("pair", text, head=head.kind)]
        if head:
            text = f"the {head.name} in the target's file is not run: {why_not}"
            return [*found, note("pair", text, "use a small model of the same family as --draft")]
        text = "no draft model: guesses come from the text alone"
        if sum(prod(tensor.shape) for tensor in headers[0].tensors) < SMALL:
            return [*found, good("pair", f"{text}; for so small a target hardly any draft is cheap enough")]
        remedy = "a small model of the same family as --draft would guess more than the text alone"
        return [*found, note("pair", text, remedy)]
    verdict = check_headers(*headers)
    if not verdict.usable:
        remedy = (
            "choose a draft of the target's own family (`edgespec pull` proposes some), or use --no-draft"
        )
        return [*found, problem("pair", f"{draft.name} cannot draft for {target.name}: {verdict}", remedy)]
    found.append(good("pair", f"{verdict}: the draft may guess for the target", fit=verdict.fit))
    sizes = [sum(tensor.n_bytes or 0 for tensor in header.tensors) for header in headers]
    if sizes[1] * 3 > sizes[0]:
        text = f"the draft is {sizes[1] / sizes[0]:.0%} of the target's size: its guesses are expensive"
        found.append(note("pair", text, "a draft of a tenth of the target or less usually gains more"))
    return found


def projector(target: Path, asked: str) -> list[Finding]:
    """Checks whether the target's projector can be used, if it has one. asked: by --mmproj."""
    try:
        path = projector_of(target, asked)
        kinds = " and ".join(reads_of(read_file(path))) if path else ""
    except (HeaderError, EdgeSpecError) as error:
        return [problem("pair", str(error), "name another projector with --mmproj, or --mmproj none")]
    if path is None:
        return []
    if not reads_media():
        text = f"{path.name} reads {kinds}, but this build of llama.cpp cannot"
        return [problem("pair", text, f"build it whole: {REBUILD}", file=str(path))]
    return [good("pair", f"projector {path.name} reads {kinds}", file=str(path))]


def _head_file(target: Path, path: Path, head: Head) -> Finding:
    """Says whether a head in its own file is for this target."""
    why_not = why_not_driven(head, headers_of(path), headers_of(target))
    if why_not:
        text = f"{path.name} is {head.a_name} that cannot guess for {target.name}: {why_not}"
        return problem("pair", text, "choose the head that was made for this target, or use --no-draft")
    return good("pair", f"{path.name} is {head.a_name}, and may guess for the target", head=head.kind)


def _model(role: str, path: Path, header: Header) -> Finding:
    facts = facts_of(header)
    parts = [facts.architecture, facts.size_label, facts.quantisation, f"memory: {facts.memory_text}"]
    text = f"{role} {path.name}: " + ", ".join(part for part in parts if part)
    details = {"role": role, "file": str(path), "architecture": facts.architecture, "memory": facts.memory}
    if facts.memory in ("hybrid", "recurrent"):
        return note(
            "pair",
            text,
            "its memory cannot drop single tokens, so it serves one request at a time",
            **details,
        )
    return good("pair", text, **details)


def fit(target: Path, draft: Path | None, settings: PairSettings) -> list[Finding]:
    """Checks whether the pair fits, asking llama.cpp."""
    name = " and ".join(path.name for path in (target, draft) if path)
    headers = headers_of(target)
    trained = headers[0].of_architecture("context_length")
    if (settings.n_ctx or 0) > (trained or 2**31) and learned_positions(headers):
        text = f"{settings.n_ctx:,} tokens of context are asked for: {target.name} has {trained:,} positions"
        return [problem("memory", text, f"--ctx {trained}, or less")]
    beyond = beyond_trained(target.name, settings.n_ctx or 0, trained, settings.rope)
    notes = [note("context", beyond, f"--ctx {trained}, or less, if they do")] if beyond else []
    try:
        eyes = projector_need(projector_of(target, settings.mmproj))
        found = pair_fit(target, draft, settings, projector=eyes)
    except (HeaderError, EdgeSpecError) as error:
        return [*notes, note("memory", f"the memory that the pair takes is unknown: {error}")]
    return [*notes, _memory(found, name, eyes)]


def _memory(found: Fit, name: str, projector: Need | None) -> Finding:
    choice = found.choice
    facts = {
        "n_ctx": choice.n_ctx,
        "total": choice.total,
        "n_gpu_layers": choice.n_gpu_layers,
        "needs": {model: need.total for model, need in choice.needs.items()},
        "devices": {device.name: choice.on(device.name) for device in found.devices},
        "projector": projector.total if projector else 0,
    }
    if not found.fits:
        return problem("memory", found.sentence(name), " or ".join(found.proposals) or SMALLER, **facts)
    parts = sum((need.parts for need in choice.needs.values()), start=Parts())
    kinds = {
        "weights": parts.weights,
        "cache": parts.cache,
        "recurrent state": parts.state,
        "buffers": parts.output + parts.compute,
    }
    text = (
        f"the pair takes {gib(choice.total)} with a context of {choice.n_ctx:,} tokens ("
        + ", ".join(f"{kind} {gib(size)}" for kind, size in kinds.items() if size)
        + ")"
        + (f", its projector {gib(projector.total)}" if projector else "")
        + (f": {found.where}" if found.where else "")
    )
    if found.gave_up:
        remedy = "; ".join(found.proposals) or "free memory, or choose a smaller model, to have all of it"
        return note("memory", "; ".join([text, *found.gave_up]), remedy, **facts)
    return good("memory", text, **facts)


def judged(measured: dict[str, Any], *, has_draft: bool) -> list[Finding]:
    """Returns what a measurement means."""
    if reason := measured.get("error") or measured.get("broken"):
        return [problem("speculation", f"the pair cannot be run: {reason}", "see the findings above it")]
    if not measured["prompts"] or measured["plain_tok_per_s"] is None:
        remedy = "allow more time with --seconds"
        return [note("speculation", "nothing could be measured in this time", remedy, **measured)]
    found = [*_attention(measured["flash_attention"]), _on(measured, has_draft)]
    if measured["drafted"]:
        found.append(_pays(measured))
    return found


def _attention(chosen: dict[str, bool | None]) -> list[Finding]:
    """Says whether the target has flash attention on the processor, and what that means for its digits."""
    flash = chosen["target"]
    if flash is None:  # a card decides
        return []
    text = "flash attention is on: digits depend on the number of threads, which stays within a text"
    if not flash:
        text = "flash attention is off: digits do not depend on the number of threads"
    return [good("attention", f"{text}; --byte-identical rules out all such differences", **chosen)]


def _on(measured: dict[str, Any], has_draft: bool) -> Finding:
    if not measured["drafted"]:
        text = "speculation is on, and nothing was guessed: guesses were found not to pay off here"
        return note("speculation", text, _costs(measured), drafted=0)
    n = measured["drafted"]
    text = f"speculation is on: {n} token{'s'[: n != 1]} guessed, {measured['accepted']} accepted"
    guessers = {name: n for name, n in measured["sources"].items() if n and name != "target"}
    if guessers:
        text += f" ({', '.join(f'{name} {n}' for name, n in sorted(guessers.items()))})"
    return good(
        "speculation", text, drafted=measured["drafted"], accepted=measured["accepted"], has_draft=has_draft
    )


def _pays(measured: dict[str, Any]) -> Finding:
    """Says whether it pays, if the interval of the speed-up leaves no doubt."""
    n, ratio = measured["prompts"], measured["speedup"] or {}
    speeds = f"{measured['tok_per_s']:.1f} tok/s with speculation, {measured['plain_tok_per_s']:.1f} without"
    over = f", {n} prompt{'s'[: n != 1]}"
    if measured["others"] >= BUSY_CORES:
        over += f"; other programs kept {measured['others']:.1f} cores busy during it"
    if measured["drafted"] < ENOUGH_GUESSES or n < ENOUGH_PROMPTS or ratio.get("low") is None:
        text = f"too little was measured to say whether it pays off: {speeds}{over}"
        return note("speculation", text, "allow more time, for example --seconds 60", **measured)
    text = f"{speeds}: {ratio['value']:.2f} times (95 %: {ratio['low']:.2f} to {ratio['high']:.2f}){over}"
    if ratio["low"] > 1:
        return good("speculation", text, **measured)
    if ratio["high"] < 1:
        remedy = f"use --no-draft, or --drafter none, with this pair; {_costs(measured)}"
        return note("speculation", f"{text}: it does not pay off here", remedy, **measured)
    remedy = f"--seconds 60 measures longer; {_costs(measured)}"
    return note("speculation", f"{text}: it is unclear whether it pays off here", remedy, **measured)


def _costs(measured: dict[str, Any]) -> str:
    """Returns what decides whether guesses pay, as measured, and the page on it."""
    one, four, rate = measured["target_s"]["1"], measured["target_s"]["4"], measured["acceptance_rate"]
    facts = [f"a token takes {1000 * one:.1f} ms"]
    if measured["draft_s"]:
        facts.append(f"a guess {measured['draft_s'] / one:.0%} of that")
    facts.append(f"four tokens at once {four / one:.1f} times that")
    if rate is not None:
        facts.append(f"{rate:.0%} of the guesses were accepted")
    return f"{', '.join(facts)}: docs/doctor.md#when-guesses-do-not-pay"
