"""What a target is asked to write: a prompt, a temperature, a limit."""

from dataclasses import dataclass

TEMPERATURES = (0.0, 1.0, 0.7, 0.0, 0.9, 1.0, 0.0, 0.8)  # in turn, over the prompts


@dataclass(frozen=True, slots=True)
class Saying:
    """Ask for at most `limit` tokens after a prompt."""

    prompt: list[int]
    temperature: float
    limit: int
    said: tuple[int, ...] = ()  # what the target wrote before: it is read, and nothing new is written
