"""`edgespec pull smollm2-135m`: the model that `make chat` starts with, from hub or package index."""

from __future__ import annotations

from collections.abc import Callable

from edgespec.errors import DownloadError
from edgespec_models.hub.choose_file import WantedFile
from edgespec_models.hub.errors import HubError
from edgespec_models.hub.hub import Hub
from edgespec_models.hub.pull import Order, PullPlan, plan_pull
from edgespec_models.hub.starter import NAME, STARTER, StarterError, from_package, installed_file
from edgespec_models.shelf.sizes import size_text
from edgespec_models.shelf.store import InstalledPair, Store

__all__ = ["NAME", "hub_plan", "install"]


def hub_plan(hub: Hub) -> PullPlan:
    """Returns what pulling it from the hub would do. Raises HubError."""
    if installed_file():
        raise HubError(f"{STARTER.package} is installed here")
    plan = plan_pull(
        hub, Order(WantedFile(STARTER.repo, STARTER.file, STARTER.revision), None, NAME, True, None)
    )
    if plan.target.first.sha256 != STARTER.sha256:
        raise HubError(f"{plan.target.first} is another file than the one that was tried")
    return plan


def install(store: Store, say: Callable[[str], None]) -> InstalledPair:
    """Installs it from the package, with progress in one line. Raises DownloadError, StoreError."""
    size = size_text(STARTER.size if installed_file() else STARTER.download)
    say(f"fetching {STARTER.title} ({size}, {STARTER.licence}) from the package {STARTER.package}, once")
    try:
        return from_package(store)
    except StarterError as error:
        raise DownloadError(str(error)) from None
