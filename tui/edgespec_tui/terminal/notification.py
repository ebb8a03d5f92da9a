"""What a terminal is sent so that people who look elsewhere notice: a bell, or OSC 9 or 777."""

WAYS = ("bell", "osc9", "osc777", "off")


def notification(way: str, text: str) -> str:
    """Returns what to write; "" if nobody wants to be notified."""
    told = {"bell": "\a", "osc9": f"\x1b]9;{text}\a", "osc777": f"\x1b]777;notify;EdgeSpec;{text}\a"}
    return told.get(way, "")
