"""One server for the tests that leave it as it is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from served import Served, served


@pytest.fixture(scope="session")
def dialects(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    flags = ("--alias", "tiny", "--slots", "4", "--mmproj", "none")  # one that reads text alone
    with served(tmp_path_factory.mktemp("dialects"), *flags) as server:
        yield server
