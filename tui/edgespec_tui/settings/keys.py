"""How keys are named: each has an id to which the settings file can give other keys."""

from textual.binding import Binding


def key(
    id: str, keys: str, name: str, does: str, *, action: str = "", shown: bool = False, first: bool = False
) -> Binding:
    """Returns a binding. id: "chat.race"; its action is what follows the point, unless one is named.

    does: a few words for help and palette. shown: it is in the footer. first: before the focused widget.
    """
    action = action or id.partition(".")[2]
    return Binding(keys, action, name, id=id, tooltip=does, show=shown, priority=first)
