"""Which file of a repository is meant: by name, by quantisation, or the usual one that fits the memory."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from edgespec_models.gguf.header import split_names
from edgespec_models.hub.errors import HubError
from edgespec_models.hub.hub import HubFile, Repository
from edgespec_models.shelf.sizes import size_text

USUAL_TARGET = (4, 5, 6, 8, 3, 16, 2, 32, 1)  # bits of a weight, the usual first
USUAL_DRAFT = (8, 4, 6, 5, 16, 3, 2, 32, 1)  # small, so precision is cheap
USUAL_PROJECTOR = (16, 8, 32)
LEAST_BITS = 3  # of what is chosen without being named
KINDS = ("", "K_M", "K", "K_S", "0", "K_XL", "K_L", "NL", "XS", "1")  # of as many bits, the usual first
FOR_CACHES = 0.9  # share of the memory that weights may take, as the catalogue is shown
_QUANT = re.compile(
    r"(?<![A-Za-z0-9])((?:UD-)?(?:I?Q\d(?:_[A-Za-z0-9]+)*|TQ\d_\d|MXFP4(?:_MOE)?|NVFP4|BF16|F16|F32))"
    r"(?![A-Za-z0-9])",
    re.IGNORECASE,
)


def _marked(words: str) -> re.Pattern[str]:
    """Returns a pattern for files marked by one of the words, in front, at the end or by their folder."""
    return re.compile(rf"(^|/)({words})[-_./]|[-_.]({words})\.gguf$", re.IGNORECASE)


_HEAD = _marked("mtp|eagle3|dflash|dspark|assistant|medusa")
_PROJECTOR = _marked("mmproj")
_OF_OTHER_USE = re.compile(_PROJECTOR.pattern + "|imatrix", re.IGNORECASE)
_ADDRESS = re.compile(r"^(https?://[^/]+/|(www\.)?(huggingface\.co|hf\.co)/|hf://)", re.IGNORECASE)
_OLLAMA = re.compile(r"^(https?://)?((registry|www)\.)?ollama\.(ai|com)/|^ollama://", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class WantedFile:
    """A user's choice: owner/name, and which of its files."""

    repo: str
    which: str  # a quantisation, a file name, or "" for the usual
    revision: str | None = None

    def __str__(self) -> str:
        return self.repo + (f":{self.which}" if self.which else "")


@dataclass(frozen=True, slots=True)
class Chosen:
    """One model on the hub: its parts in order."""

    parts: tuple[HubFile, ...]
    quantisation: str  # from the file's name; "" if it has none

    @property
    def first(self) -> HubFile:
        """The part with the header that counts."""
        return self.parts[0]

    @property
    def size(self) -> int:
        """Bytes of all parts, as far as the hub reports them."""
        return sum(part.size or 0 for part in self.parts)


def parse_wanted(text: str) -> WantedFile:
    """Reads repo[:quant] or repo[:file.gguf], or the address of either in a browser. Raises HubError."""
    if _OLLAMA.match(text.strip()):
        raise HubError(
            f"{text!r} is an address of Ollama's registry, not a repository of the hub: get it with "
            "`ollama pull`, then `edgespec import` uses its file"
        )
    plain = _ADDRESS.sub("", text.strip())
    if plain != text.strip():
        plain = unquote(plain.partition("?")[0].partition("#")[0])
    repo, _, which = plain.rstrip("/").partition(":")
    revision = None
    if page := re.fullmatch(r"([\w.-]+/[\w.-]+)/(?:resolve|blob|tree|raw)/([^/]+)(?:/(.*))?", repo):
        repo, revision = page[1], None if page[2] == "main" else page[2]
        which = which or _named_in(page[3] or "")
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repo):
        raise HubError(
            f"{text!r} is neither a pair of the catalogue nor a repository: write owner/name or "
            "owner/name:Q4_K_M; `edgespec pull` lists the catalogue"
        )
    return WantedFile(repo, which, revision)


def _named_in(path: str) -> str:
    """Returns what the rest of an address names: a file, or a folder named after a quantisation."""
    return path if path.lower().endswith(".gguf") else quantisation_of(path)


def quantisation_of(name: str) -> str:
    """Returns the quantisation in a file name, as "Q4_K_M"; "" if there is none."""
    found = _QUANT.findall(name)
    return found[-1].upper() if found else ""


def choose(repository: Repository, which: str, *, draft: bool, memory: int | None = None) -> Chosen:
    """Returns the model that is meant. Raises HubError that says what there is instead.

    memory: bytes available for it. If nothing is named, the usual model of those that leave room for
    caches is chosen; if none does, the smallest, and loading it will report that it does not fit.
    """
    models, incomplete = _models(repository)
    if draft and (not models or which.lower().endswith(".gguf")):
        models, incomplete = _models(repository, with_heads=True)
    if not models:
        raise HubError(
            f"{repository.repo} {incomplete[0]}: try again later, or use another repository"
            if incomplete
            else f"{repository.repo} holds no GGUF model: look for a repository whose name ends in -GGUF"
        )
    if which.lower().endswith(".gguf"):
        found = [model for model in models if any(_is(part.name, which) for part in model.parts)]
    elif which:
        found = [model for model in models if model.quantisation == which.upper()]
    else:
        found = _usual(models, USUAL_DRAFT if draft else USUAL_TARGET, memory)
    if not found:
        also = "".join(f"; it {what}" for what in incomplete)
        raise HubError(f"{repository.repo} has no {which}: it has {listed(models)}{also}")
    if len(found) > 1:
        names = " or ".join(model.first.name for model in found[:4])
        raise HubError(
            f"{repository.repo} has several models: say which one, as in "
            f"{repository.repo}:{found[0].first.name} ({names})"
        )
    return found[0]


def instead_of(repository: Repository, chosen: Chosen) -> list[Chosen]:
    """Returns smaller models to take instead of a usual one: those of as many bits first."""
    bits, smaller = bits_of(chosen.quantisation), smaller_than(repository, chosen)
    sound = [model for model in smaller if LEAST_BITS <= bits_of(model.quantisation) <= bits]
    return sorted(sound, key=lambda model: -bits_of(model.quantisation))


def smaller_than(repository: Repository, chosen: Chosen) -> list[Chosen]:
    """Returns the models of a repository that are smaller than one of them, the largest first."""
    models, _ = _models(repository)
    return sorted((m for m in models if 0 < m.size < chosen.size), key=lambda m: m.size, reverse=True)


def projector_in(repository: Repository) -> Chosen | None:
    """Returns the projector of a repository, with which its models read pictures: in 16 bits if there are."""
    names = [name for name in sorted(repository.files) if name.lower().endswith(".gguf")]
    found = [
        Chosen((repository.files[name],), quantisation_of(name)) for name in names if _PROJECTOR.search(name)
    ]
    return min(found, key=lambda one: _rank(one.quantisation, USUAL_PROJECTOR), default=None)


def _is(name: str, which: str) -> bool:
    return which in (name, name.rpartition("/")[2])


def heads_in(repository: Repository) -> list[str]:
    """Returns the files of a repository whose names mark them as heads."""
    return [
        name
        for name in sorted(repository.files)
        if name.lower().endswith(".gguf") and _HEAD.search(name) and not _OF_OTHER_USE.search(name)
    ]


def _models(repository: Repository, *, with_heads: bool = False) -> tuple[list[Chosen], list[str]]:
    """Returns the models of a repository, parts gathered, and in words which parts are missing of others.

    with_heads: heads that guess for a model are wanted too.
    """
    names = [name for name in sorted(repository.files) if name.lower().endswith(".gguf")]
    models, incomplete = [], []
    for name in names:
        if _OF_OTHER_USE.search(name) or (_HEAD.search(name) and not with_heads):
            continue
        folder, _, base = name.rpartition("/")
        parts = [f"{folder}/{part}" if folder else part for part in split_names(base)]
        if name != parts[0] and parts[0] in repository.files:
            continue  # it is gathered with the first one
        if missing := next((part for part in parts if part not in repository.files), ""):
            incomplete.append(f"lacks {missing}, one of the {len(parts)} parts of {base}")
            continue
        models.append(Chosen(tuple(repository.files[part] for part in parts), quantisation_of(name)))
    return models, list(dict.fromkeys(incomplete))[:3]


def _usual(models: list[Chosen], bits: Sequence[int], memory: int | None) -> list[Chosen]:
    """Returns the usual model: several if names do not distinguish them."""
    ranked = sorted(models, key=lambda model: _rank(model.quantisation, bits))
    sound = [model for model in ranked if bits_of(model.quantisation) >= LEAST_BITS] or ranked
    fitting = [model for model in sound if memory is None or model.size <= FOR_CACHES * memory]
    if not fitting:
        return [min(sound, key=lambda model: model.size)]
    return [model for model in fitting if model.quantisation == fitting[0].quantisation]


def bits_of(quantisation: str) -> int:
    """Returns how many bits a weight has, about; 0 if the name does not say."""
    digits = re.search(r"\d+", quantisation)
    return int(digits[0]) if digits else 0


def _rank(quantisation: str, bits: Sequence[int]) -> tuple[int, int, str]:
    """Returns the rank of a quantisation among the usual ones."""
    n, kind = bits_of(quantisation), quantisation.removeprefix("UD-").partition("_")[2]
    special = not quantisation.startswith(("Q", "F"))
    order = 2 * KINDS.index(kind) + special if kind in KINDS else 2 * len(KINDS)
    return bits.index(n) if n in bits else len(bits), order, quantisation


def listed(models: Sequence[Chosen]) -> str:
    """Returns what there is, as users can name it: the quantisations, with their sizes if known."""
    sizes = {model.quantisation or model.first.name: model.size for model in models}
    return ", ".join(f"{name} ({size_text(size)})" if size else name for name, size in sorted(sizes.items()))
