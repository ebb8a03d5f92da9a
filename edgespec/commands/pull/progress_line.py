"""Progress of a download, in one line."""

from edgespec_models.hub.download import Downloaded
from edgespec_models.shelf.sizes import seconds_text, size_text


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
