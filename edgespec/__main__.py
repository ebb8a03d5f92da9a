"""`python -m edgespec`: the same as `edgespec`."""

import sys


def run() -> int:
    """Runs the command line. Ctrl+C while Python is still importing ends it quietly, as later."""
    try:
        from edgespec.commands.cli import main

        return main()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(run())
