"""The installed pairs as commands see them: where the store is, and its errors as EdgeSpec's."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from edgespec.errors import DownloadError, HubLostError, ModelFileError, SettingError
from edgespec.system import config
from edgespec_models import tiny
from edgespec_models.shelf.store import EMBEDDED, InstalledPair, Store, StoreError

FEWEST_TOKENS = 32  # a speed over fewer means little


def open_store() -> Store:
    """Returns the store of this user's pairs."""
    return Store(config.data_folder())


@contextmanager
def store_errors() -> Iterator[None]:
    """Turns an error of the store or a name into a SettingError."""
    try:
        yield
    except StoreError as error:
        raise SettingError(str(error)) from None


@contextmanager
def hub_errors() -> Iterator[None]:
    """Turns what the hub, its files and the catalogue complain of into errors of the program."""
    from edgespec_models.gguf.header import HeaderError
    from edgespec_models.hub.errors import HubAwayError, HubError
    from edgespec_models.shelf.catalogue import CatalogueError

    try:
        yield
    except HubAwayError as error:
        raise HubLostError(str(error)) from None
    except (HubError, HeaderError) as error:
        raise DownloadError(str(error)) from None
    except CatalogueError as error:
        raise SettingError(str(error)) from None


def installed_pairs() -> dict[str, InstalledPair]:
    """Returns the installed pairs by name, also those whose files are gone. Raises SettingError."""
    with store_errors():
        return {pair.name: pair for pair in open_store().pairs()}


def installed_pair(name: str | None) -> InstalledPair | None:
    """Returns the pair of that name, or the default one; None for the embedded pair, or if there is none.

    Raises SettingError for a name that is not installed, ModelFileError if its files are gone.
    """
    if name == EMBEDDED:
        return None
    with store_errors():
        store = open_store()
        wanted = name or store.default()
        if wanted is None:
            return None
        pair = store.get(wanted)
    if pair.missing:
        again = f"edgespec pull {pair.target.repo}" if pair.source == "pulled" else f"edgespec rm {pair.name}"
        raise ModelFileError(
            f"pair {pair.name} lacks {Path(pair.missing[0]).name}, which is no longer at "
            f"{Path(pair.missing[0]).parent}: `{again}`, or name another pair with --pair"
        )
    return pair


def standing_in() -> tuple[str, str] | None:
    """Returns the name of the pair to use where the default one has lost files, and a sentence about it.

    It is the one that was used or installed last among those that are whole, else the embedded pair. None
    if the default one is whole. Raises SettingError for a store that cannot be read.
    """
    try:
        installed_pair(None)
    except ModelFileError as error:
        with store_errors():
            whole = [pair for pair in open_store().pairs() if not pair.missing]
        last = max(whole, key=lambda pair: pair.last_used or pair.installed_at, default=None)
        name, what = (last.name, f"pair {last.name}") if last else (EMBEDDED, "the embedded pair")
        return name, f"{error}; {what} answers in its place"
    return None


def default_files() -> tuple[Path, Path | None]:
    """Returns target and draft of the pair that is used if none is named; raises as `installed_pair`."""
    pair = installed_pair(None)
    if pair is None:
        return tiny.target_path(), tiny.draft_path()
    return pair.target.path, pair.draft.path if pair.draft else None


def note_use(name: str) -> None:
    """Notes that a pair was used now; a store that cannot be written is no error."""
    with suppress(StoreError):
        open_store().note_use(name)


def note_speed(
    name: str, *, tokens: int, tok_per_s: float | None, plain_tok_per_s: float | None = None
) -> None:
    """Notes how fast a pair was, if it generated enough tokens to tell."""
    if tok_per_s and tokens >= FEWEST_TOKENS:
        with suppress(StoreError):
            open_store().note_speed(name, tok_per_s, plain_tok_per_s)
