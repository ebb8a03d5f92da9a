"""Text for screen readers and pipes: an answer as it comes, without moving the cursor."""

import re
from dataclasses import dataclass

LONGEST = 120  # characters that are held back at most
END = re.compile(r"\n|[.!?:;。！？](?=\s)")


@dataclass(slots=True)
class WholeSentences:
    """Releases text by lines and sentences: a screen reader speaks what appears, and would speak halves."""

    _held: str = ""

    def feed(self, text: str) -> str:
        """Returns what may be written now."""
        self._held += text
        end = max((found.end() for found in END.finditer(self._held)), default=0)
        if len(self._held) - end > LONGEST:
            end = max(self._held.rfind(" ") + 1, end) or len(self._held)
        out, self._held = self._held[:end], self._held[end:]
        return out

    def end(self) -> str:
        """Returns what is left."""
        out, self._held = self._held, ""
        return out


@dataclass(slots=True)
class AsItComes:
    """Releases every piece at once: for programs."""

    def feed(self, text: str) -> str:
        return text

    def end(self) -> str:
        return ""


def figure_lines(figures: dict[str, float | int | str | None]) -> list[str]:
    """Returns an answer's figures in one or two short lines."""
    speed, first = figures.get("tok_per_s"), figures.get("ttft_s")
    told = [f"{figures.get('n_tokens') or 0} tokens"]
    told.append(f"{speed:.1f} tok/s" if isinstance(speed, float) else "too few tokens for a speed")
    if isinstance(first, float):
        told.append(f"first token after {first * 1000:.0f} ms")
    prompt = figures.get("prompt_tokens")
    lines = [", ".join(told) + (f" ({prompt} tokens of prompt)" if prompt is not None else "")]
    rate, length = figures.get("acceptance_rate"), figures.get("mean_accepted_length")
    if isinstance(rate, float):
        more = [f"acceptance rate {rate:.2f} ({figures['accepted']} of {figures['drafted']})"]
        if isinstance(length, float):
            more.append(f"mean accepted length {length:.2f}")
        if isinstance(speedup := figures.get("speedup_estimated"), float):
            more.append(f"speed-up {speedup:.2f} (estimated)")
        lines.append(", ".join(more))
    return lines
