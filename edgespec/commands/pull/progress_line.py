"""Progress of a download, in one line on a terminal; elsewhere a line now and then."""

from typing import TextIO

from edgespec.commands.status_line import StatusLine
from edgespec_models.hub.download import Downloaded
from edgespec_models.shelf.sizes import seconds_text, size_text

LINES = 10  # of a download if no line can be rewritten


def progress_text(progress: Downloaded) -> str:
    """Returns the line: share, bytes, speed, time left, or what else is happening."""
    if progress.asked_to_wait is not None:
        return f"the hub has had too many requests and asks to wait {seconds_text(progress.asked_to_wait)}"
    busy = [file for file in progress.files if file.phase in ("downloading", "verifying")]
    share = progress.done / progress.total if progress.total else 0.0
    if any(file.phase == "downloading" for file in busy) or not busy and share < 1:
        text = f"downloading {share:4.0%}  {size_text(progress.done)} of {size_text(progress.total)}"
        if progress.bytes_per_s:
            text += f"  {size_text(progress.bytes_per_s)}/s"
        if progress.seconds_left is not None:
            text += f"  {seconds_text(progress.seconds_left)} left"
        waiting = [file.name for file in progress.files if file.phase == "waiting"]
        if not busy and waiting:
            text = f"waiting for {waiting[0]}, which another program downloads"
        return text
    if busy:
        file = busy[0]
        return f"verifying {file.name} {file.done / max(file.size or file.done, 1):4.0%}"
    return f"downloaded {size_text(progress.total)}"


class ProgressLine:
    """Shows progress on `out`."""

    def __init__(self, out: TextIO) -> None:
        self.out, self._line = out, StatusLine(out)
        self._step, self._last = -1, ""

    def show(self, progress: Downloaded) -> None:
        """Shows the progress."""
        text = progress_text(progress)
        if self._line.rewrites:
            self._line.show(text)
            return
        step = LINES * progress.done // progress.total if progress.total else 0
        kind = text.partition(" ")[0]
        if step > self._step or kind != self._last:
            self._step, self._last = step, kind
            self.out.write(text + "\n")
            self.out.flush()

    def end(self) -> None:
        """Clears the line."""
        self._line.clear()
