"""`python -m edgespec`: the same as `edgespec`."""

import gc
import sys

SELDOM = 20_000  # new objects until Python looks for garbage: what is imported stays


def run() -> int:
    """Runs the command line. Ctrl+C while Python is still importing ends it quietly, as later."""
    gc.set_threshold(SELDOM)
    try:
        from edgespec.commands.cli import main

        return main()
    except KeyboardInterrupt:
        return 130
    finally:
        gc.freeze()  # else Python looks at everything once more before it ends, for 0.05 s


if __name__ == "__main__":
    sys.exit(run())
