"""One pull, in its own thread, so that a chat continues during it. It outlives the screen that started it.

Its state may be read at any time; nobody has to wait for it. Cancelling keeps what has come, and the next
pull of the same pair fetches the rest.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from edgespec_models.gguf.header import HeaderError
from edgespec_models.hub.download import Cancelled, Downloaded
from edgespec_models.hub.errors import HubError
from edgespec_models.hub.hub import Hub
from edgespec_models.hub.propose import Proposal, propose
from edgespec_models.hub.pull import Order, Pull, PullPlan, order, plan_pull
from edgespec_models.shelf.catalogue import CatalogueError
from edgespec_models.shelf.sizes import size_text
from edgespec_models.shelf.store import InstalledPair, Store, StoreError

Stage = Literal["checking", "choosing", "pulling", "done", "failed", "cancelled"]
OVER: tuple[Stage, ...] = ("done", "failed", "cancelled")


class ModelPull:
    """A pull that runs. what: a name of the catalogue, or a repository.

    stage, and its message now: `sentence`. progress: of the download. choices: drafts that fit, while a
    draft has to be chosen (`choose`). pair: what was installed. on_end: called once, from the thread.
    """

    def __init__(
        self,
        what: str,
        store: Store,
        *,
        hub: Callable[[], Hub] = Hub,
        on_end: Callable[[ModelPull], None] = lambda _: None,
    ) -> None:
        self.what, self._store, self._hub, self._on_end = what, store, hub, on_end
        self.stage: Stage = "checking"
        self.sentence = f"Looking at {what} on the hub ..."
        self.progress: Downloaded | None = None
        self.choices: tuple[Proposal, ...] = ()
        self.pair: InstalledPair | None = None
        self._chosen: Proposal | None = None
        self._decided = threading.Event()
        self._cancelled = threading.Event()
        self._pull: Pull | None = None
        threading.Thread(target=self._run, name="pull", daemon=True).start()

    @property
    def over(self) -> bool:
        return self.stage in OVER

    def cancel(self) -> None:
        """Ends it; files that are whole are kept."""
        self._cancelled.set()
        self._decided.set()
        if pull := self._pull:
            pull.cancel()

    def choose(self, draft: Proposal | None) -> None:
        """Continues with a draft of `choices`, or with none."""
        self._chosen = draft
        self._decided.set()

    def _run(self) -> None:
        try:
            self._work()
        except Cancelled:
            self._end("cancelled", "Stopped; files that are whole are kept. Pull it again to fetch the rest.")
        except (HubError, HeaderError, CatalogueError, StoreError) as error:
            self._end("failed", str(error))
        self._on_end(self)

    def _end(self, stage: Stage, sentence: str) -> None:
        self.sentence, self.stage = sentence, stage

    def _heed(self) -> None:
        if self._cancelled.is_set():
            raise Cancelled

    def _work(self) -> None:
        hub = self._hub()
        wanted = order(self.what)
        plan = plan_pull(hub, wanted)
        self._heed()
        if wanted.draft is None and not wanted.entry:
            plan = self._with_draft(hub, wanted, plan)
        self.sentence = _about(plan)
        self._pull = pull = Pull(plan, hub, self._store)
        self._heed()
        self.stage = "pulling"
        self.pair = pull.run(self._note)
        self._end("done", f"{self.pair.name} is installed.")

    def _with_draft(self, hub: Hub, wanted: Order, plan: PullPlan) -> PullPlan:
        """Lets somebody choose among the drafts that fit a target."""
        self.sentence = "Looking for drafts that fit ..."
        proposals, _ = propose(hub, plan.target, plan.headers[0])
        self._heed()
        self.choices = tuple(proposal for proposal in proposals if proposal.fits)
        refused = next((f" ({p.candidate}: {p.reason})" for p in proposals if not p.fits), "")
        self.sentence = "Which draft?" if self.choices else f"No draft is known to fit{refused}."
        self.stage = "choosing"
        self._decided.wait()
        self._heed()
        self.stage = "checking"
        if self._chosen is None:
            return plan
        return plan_pull(hub, replace(wanted, draft=self._chosen.candidate))

    def _note(self, progress: Downloaded) -> None:
        self.progress = progress
        self.sentence = progress.text[0].upper() + progress.text[1:]


def _about(plan: PullPlan) -> str:
    have = f", {size_text(plan.at_hand)} already here" if plan.at_hand else ""
    return f"{size_text(plan.to_fetch)} to fetch{have}."
