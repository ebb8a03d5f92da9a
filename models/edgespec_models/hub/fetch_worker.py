"""The process that downloads: files in parallel, orders on stdin, progress on stdout.

It is a process of its own so that it can be ended at any moment, whatever the network does. It ends by
itself when its stdin closes, so it never outlives the program that started it. Messages are JSON, one a
line; a token comes in that way too, since arguments can be read by every user of the machine.
"""

import json
import logging
import os
import re
import sys
import threading
import time
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Any

AT_ONCE = 4  # files
_WAIT = re.compile(r"Rate limited\. Waiting ([\d.]+)s")
TELL_EVERY_S = 0.1


class _Teller:
    """Writes messages, one thread at a time; of progress no more than people can see."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sent: dict[int, tuple[str, float]] = {}

    def say(self, **message: Any) -> None:
        with self._lock:
            sys.stdout.write(json.dumps(message) + "\n")
            sys.stdout.flush()

    def waits(self, seconds: float) -> None:
        self.say(wait=seconds)

    def progress(self, i: int, phase: str, done: int) -> None:
        before, at = self._sent.get(i, ("", 0.0))
        now = time.monotonic()
        if phase != before or now - at >= TELL_EVERY_S:
            self._sent[i] = phase, now
            self.say(file=i, phase=phase, done=done)


class _Waits(logging.Handler):
    """Reports the waits that the hub asks for, which the client only logs."""

    def __init__(self, teller: _Teller) -> None:
        super().__init__(logging.WARNING)
        self._teller = teller

    def emit(self, record: logging.LogRecord) -> None:
        found = _WAIT.search(record.getMessage())
        if found:
            self._teller.waits(float(found[1]))


def main() -> int:
    """Does what the first line of stdin asks for; returns the exit code."""
    asked, teller = json.loads(sys.stdin.readline()), _Teller()
    threading.Thread(target=_end_with_parent, daemon=True).start()

    from edgespec_models.gguf.header import HeaderError
    from edgespec_models.hub.errors import HubError
    from edgespec_models.hub.fetch import fetch
    from edgespec_models.hub.hub import Hub, HubFile

    log = logging.getLogger("huggingface_hub")
    log.handlers[:] = [_Waits(teller)]
    log.setLevel(logging.WARNING)
    hub = Hub(
        endpoint=asked["endpoint"],
        token=asked["token"],
        cache=Path(asked["cache"]),
        offline=asked["offline"],
        on_wait=teller.waits,
    )

    def one(i: int, fields: dict[str, Any]) -> None:
        note = partial(teller.progress, i)
        path = fetch(hub, HubFile(**fields["file"]), verified=fields["verified"], on_phase=note)
        teller.say(file=i, phase="done", done=path.stat().st_size, path=str(path))

    with ThreadPoolExecutor(AT_ONCE) as pool:
        jobs = [pool.submit(one, i, fields) for i, fields in enumerate(asked["files"])]
        wait(jobs, return_when=FIRST_EXCEPTION)
        for job in jobs:
            if not job.done():
                continue
            try:
                job.result()
            except (HubError, HeaderError) as error:
                teller.say(error=str(error))
                os._exit(1)  # the others end, too: the pair is of no use without this one
    return 0


def _end_with_parent() -> None:
    while os.read(0, 4096):  # not through sys.stdin, whose lock would be held while Python ends
        pass
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
