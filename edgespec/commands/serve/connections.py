"""The connections of clients: how long one may be silent, and how many there may be."""

import asyncio
import time
from contextlib import suppress

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_S = 30.0  # how long a client may take for the head of its first request
READ_S = 2.0  # how long a client may leave what it is sent unread, once the server ends
AT_ONCE = 16  # connections that are accepted at once
SPARE = 64  # file descriptors for everything else
WANTED = 4096  # file descriptors, where the system allows so many
WITHOUT_LIMITS = 400  # connections, where the system does not say what it allows


class Connection(H11Protocol):
    """HTTP/1.1; a client that is silent at first, or sends half of a head, loses its connection.

    If there are `most` connections, a new one takes the place of the one that has waited longest for a
    request: without file descriptors, nobody could connect, not even to ask for `/health`.
    """

    most = WITHOUT_LIMITS
    _silence: asyncio.TimerHandle | None = None  # until a head is whole
    _since = 0.0
    _unread_since: float | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._since = time.monotonic()
        self._wait_for_head()
        if len(self.connections) > self.most:
            self._make_room()

    def _make_room(self) -> None:
        others = [one for one in self.connections if isinstance(one, Connection) and one is not self]
        waiting = [one for one in others if one.waits_for_request and not one.transport.is_closing()]
        victim = min(waiting, key=lambda one: one._since, default=self)
        victim.transport.close()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.waits_for_request:  # what came is not a whole head yet
            self._wait_for_head()
        else:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    @property
    def waits_for_request(self) -> bool:
        """True before a request and between two."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def lags(self) -> bool:
        """True if its client has sent half a request, or does not read."""
        unread = self._unread_since is not None and time.monotonic() - self._unread_since > READ_S
        return unread or self.transport.is_closing() or (self.cycle is not None and self.cycle.more_body)

    def pause_writing(self) -> None:
        self._unread_since = time.monotonic()
        super().pause_writing()

    def resume_writing(self) -> None:
        self._unread_since = None
        super().resume_writing()

    def drop(self) -> None:
        """Ends it, whatever is still to be sent."""
        if self.transport.is_closing() or self._unread_since is not None:
            self.transport.abort()
        else:
            self.transport.close()

    def _wait_for_head(self) -> None:
        if self._silence is None:
            self._silence = self.loop.call_later(HEAD_S, self._end_silence)

    def _stop_waiting(self) -> None:
        if self._silence:
            self._silence.cancel()
            self._silence = None

    def _end_silence(self) -> None:
        self._silence = None
        if self.waits_for_request:
            self.transport.close()


def room_for_connections() -> int:
    """Returns how many connections the system's limit of file descriptors allows; raises it if it is low."""
    try:
        import resource
    except ImportError:  # Windows
        return WITHOUT_LIMITS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < WANTED and (hard > soft or hard == resource.RLIM_INFINITY):
        wanted = WANTED if hard == resource.RLIM_INFINITY else min(WANTED, hard)
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    return max(AT_ONCE, min(soft, WANTED) - SPARE - AT_ONCE)
