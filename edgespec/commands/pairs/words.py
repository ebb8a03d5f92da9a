"""The texts of `edgespec list` and `show`, for people and for programs."""

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from edgespec.commands.table import table
from edgespec.errors import EdgeSpecError
from edgespec.memory.at_load import pair_fit, projector_need
from edgespec.pairs.projector import reads_of
from edgespec.pairs.settings import PairSettings
from edgespec.system.terminal import one_line
from edgespec_models import tiny
from edgespec_models.gguf.facts import facts_of, scaled_positions
from edgespec_models.gguf.head_check import own_head
from edgespec_models.gguf.header import HeaderError, read_file
from edgespec_models.gguf.vocabulary import vocabulary_of
from edgespec_models.shelf.catalogue import CatalogueEntry, CatalogueModel
from edgespec_models.shelf.pair_check import check_headers
from edgespec_models.shelf.sizes import size_text
from edgespec_models.shelf.store import EMBEDDED, InstalledModel, InstalledPair, Speed

DAY = 86_400
SHIPPED = "the pair that ships with EdgeSpec; it knows Python and its library, and little else"


def list_lines(pairs: Sequence[InstalledPair], default: str | None, *, now: float) -> list[str]:
    """Returns the installed pairs as a table."""
    if not pairs:
        return ["no pair is installed, so the embedded one answers; `edgespec pull` lists the catalogue"]
    rows = [("", "pair", "target", "draft", "size", "used", "speed here")]
    for pair in pairs:
        mark = "*" if pair.name == default else ""
        draft = pair.draft.path.name if pair.draft else "none"
        speed = "files are missing" if pair.missing else speed_text(pair.speed)
        used = ago(pair.last_used, now)
        rows.append((mark, pair.name, pair.target.path.name, draft, size_text(pair.size), used, speed))
    return table(rows)


def speed_text(speed: Speed | None) -> str:
    """Returns a measured speed, and its ratio to plain decoding if that was measured too."""
    if speed is None:
        return "not measured"
    text = f"{speed.tok_per_s:.1f} tok/s"
    if speed.plain_tok_per_s:
        text += f" ({speed.tok_per_s / speed.plain_tok_per_s:.2f} x plain)"
    return text


def ago(then: float | None, now: float) -> str:
    """Returns when something was, roughly."""
    if then is None:
        return "never"
    days = int((now - then) // DAY)
    if days < 1:
        return "today"
    if days >= 60:
        return time.strftime("%Y-%m", time.gmtime(then))
    return "yesterday" if days == 1 else f"{days} days ago"


def show_lines(pair: InstalledPair, default: str | None) -> list[str]:
    """Returns all that is known of an installed pair."""
    mark = ", the default" if pair.name == default else ""
    day = time.strftime("%Y-%m-%d", time.localtime(pair.installed_at))
    came = f"{pair.source} {day}{mark}" if pair.name != EMBEDDED else SHIPPED
    lines = [f"{pair.name}: {came}", *_model_lines("target", pair.target)]
    if pair.draft:
        lines += _model_lines("draft", pair.draft)
    else:
        lines.append(f"draft   {_without_draft(pair.target)}")
    if pair.projector:
        lines.append(f"reads   {_read_by(pair.projector)}")
    lines.append(f"check   {check_text(pair)}")
    lines += _fit_lines(pair)
    lines.append(f"used    {ago(pair.last_used, time.time())}")
    lines.append(f"speed   {speed_text(pair.speed)}")
    return lines


def _read_by(projector: InstalledModel) -> str:
    """Says what a projector reads, and which it is."""
    try:
        kinds = " and ".join(reads_of(read_file(projector.path))) or "nothing"
    except HeaderError as error:
        kinds = str(error)
    return f"{kinds}, by {projector.path.name} ({size_text(projector.size)})"


def _without_draft(target: InstalledModel) -> str:
    """Says where guesses come from in a pair without a draft."""
    try:
        head, why_not = own_head([read_file(path) for path in target.paths])
    except HeaderError:
        head, why_not = None, None
    if head is None:
        return "none: guesses come from the text itself"
    which = f"the {head.name} in the target's file"
    return f"none: {which} is not run, because {why_not}" if why_not else f"none: {which} guesses"


def _model_lines(role: str, model: InstalledModel) -> list[str]:
    at = f" at {model.revision[:12]}" if model.revision else ""
    origin = f"{model.repo}{at}" if model.repo else "a local file"
    known = "SHA-256 verified" if model.sha256 else "not compared with any hash"
    lines = [f"{role:<7} {size_text(model.size)} from {origin}, {known}"]
    lines += [f"        {path}{' (missing)' if path in model.missing else ''}" for path in model.paths]
    try:
        header = read_file(model.path)
        facts = facts_of(header)
        traits = (one_line(facts.name), facts.architecture, facts.quantisation, one_line(facts.licence))
        words = " ".join(word for word in traits if word)
        context = f", context {facts.n_ctx_train:,}" if facts.n_ctx_train else ""
        scaled = scaled_positions(header)
        lines.append(f"        {words}, {facts.memory_text}{context}{', ' if scaled else ''}{scaled}")
        lines.append(f"        vocabulary {vocabulary_of(header).fingerprint}")
    except HeaderError as error:
        lines.append(f"        {error}")
    return lines


def check_text(pair: InstalledPair) -> str:
    """Returns the verdict on an installed pair."""
    if pair.draft is None:
        return "nothing to compare"
    try:
        return str(check_headers(read_file(pair.target.path), read_file(pair.draft.path)))
    except HeaderError as error:
        return str(error)


def _fit_lines(pair: InstalledPair) -> list[str]:
    """Says what would go on which graphics card now, and how attention is evaluated, as far as is known."""
    try:
        projector = projector_need(pair.projector.path if pair.projector else None)
        draft = pair.draft.path if pair.draft else None
        found = pair_fit(pair.target.path, draft, PairSettings(), projector=projector)
    except (HeaderError, EdgeSpecError):  # also of files that are missing
        return []
    place = [f"place   {found.where}"] if found.fits and found.where else []
    return [*place, *([f"with    {found.attention}"] if found.attention else [])]


def pair_json(pair: InstalledPair, default: str | None) -> dict[str, Any]:
    """Returns a pair for programs."""
    source = "shipped" if pair.name == EMBEDDED else pair.source
    known = {"size": pair.size, "missing": list(pair.missing), "default": pair.name == (default or EMBEDDED)}
    return {**asdict(pair), **known, "source": source}


def embedded_pair() -> InstalledPair:
    """Returns the shipped pair, as if it were installed."""
    target, draft = (
        InstalledModel((str(path),), path.stat().st_size) for path in (tiny.target_path(), tiny.draft_path())
    )
    return InstalledPair(EMBEDDED, target, draft, "imported", target.path.stat().st_mtime)


def entry_lines(entry: CatalogueEntry) -> list[str]:
    """Returns what the catalogue knows of a pair that is not installed."""
    lines = [f"{entry.name}: in the catalogue, not installed; `edgespec pull {entry.name}` gets it"]
    lines.append(f"for     {entry.use} on {entry.machine}, context {entry.context:,}")
    lines += _entry_model("target", entry.target)
    lines += _entry_model("draft", entry.draft) if entry.draft else []
    lines.append(f"gain    {entry.gain or 'not known'} ({entry.gain_from})")
    lines += [f"note    {note}" for note in entry.notes]
    return lines


def _entry_model(role: str, model: CatalogueModel) -> list[str]:
    marks = [model.memory, *["mixture of experts"] * model.experts, *["gated"] * model.gated]
    lines = [
        f"{role:<7} {model.repo}, {model.file}",
        f"        about {size_text(model.size)}, {', '.join(marks)}, licence {model.licence}",
    ]
    if model.unverified:
        lines.append(f"        not checked on the hub: {', '.join(sorted(model.unverified))}")
    return lines
