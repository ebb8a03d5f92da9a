"""What the tests of `edgespec_train` share."""

from collections.abc import Iterator

import llama_cpp as C
import pytest

from edgespec.llama.log import keep_log


@pytest.fixture(scope="session")
def small_library():
    """A few modules of the standard library, with everything that is made of them."""
    from edgespec_train.recipes import sources
    from edgespec_train.recipes.corpus import Library

    wanted = {"textwrap", "bisect", "queue", "shlex", "heapq"}
    files = tuple(f for f in sources.read_files() if f.module in wanted)
    items = tuple(i for f in files for i in sources.items_of(f))
    topics = tuple(sources.read_topics().items())[:4]
    return Library(files, items, topics)


@pytest.fixture(autouse=True)
def _log_as_it_was() -> Iterator[None]:
    """The recipes silence llama.cpp's log, of which the program quotes the last lines."""
    yield
    C.llama_log_set(keep_log, None)
