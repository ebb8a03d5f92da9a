"""Let a chat model ask itself: what it writes in the user's place is what it is asked next.

This follows its own instruction data, so the questions are as varied as its training (Magpie,
https://arxiv.org/abs/2406.08464). Questions and answers are written side by side, in the same slots.
"""

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from edgespec_models.distill.heard import Heard
from edgespec_models.distill.saying import TEMPERATURES, Saying

LONGEST = 320  # tokens of a question; one that has not ended by then is dropped
SHORTEST = 12  # characters
RUN = 8  # words in a row that a question may not share with held-out texts
WORDS = re.compile(r"\w+")

Prompt = Callable[[str], list[int] | None]  # a question to its prompt; None: it is too long
Speak = Callable[[Iterator[Saying]], Iterator[Heard]]


def runs(text: str) -> set[tuple[str, ...]]:
    """Return all runs of RUN words of a text, or its words if it has fewer."""
    words = WORDS.findall(text.lower())
    return {tuple(words[i : i + RUN]) for i in range(max(1, len(words) - RUN + 1))}


class SelfAsked:
    """Turn what a target writes as a user into prompts, each question once."""

    def __init__(
        self,
        user: list[int],
        text: Callable[[list[int]], str],
        prompt: Prompt,
        apart: Iterable[str],
        limit: int,
    ) -> None:
        """`user` is a prompt that ends where a user begins; `apart` are texts that no question may repeat."""
        self.user, self.text, self.prompt, self.limit = user, text, prompt, limit
        self.taken = {run for other in apart for run in runs(other)}
        self.asked: set[str] = set()
        self.waiting: deque[Saying] = deque()
        self.made = 0  # questions that were asked

    def sayings(self, others: Iterator[Saying], share: float) -> Iterator[Saying]:
        """Yield, without end, what to write: a `share` of the answers is to the model's own questions."""
        own = answers = 0
        while True:
            if own < share * answers or not answers:
                if not self.waiting:
                    yield Saying(self.user, 1.0, LONGEST)
                    continue
                own += 1
                yield self.waiting.popleft()
            else:
                yield next(others)
            answers += 1

    def listen(self, texts: Iterable[Heard]) -> Iterator[Heard]:
        """Yield all texts, since questions teach too, and keep the questions among them."""
        for text in texts:
            if text.prompt == len(self.user):
                self.note(text.ids[text.prompt :].tolist())
            yield text

    def note(self, said: list[int]) -> None:
        """Keep a question that ended, if it is new."""
        question = self.text(said[:-1]).strip()
        if len(said) >= LONGEST or len(question) < SHORTEST or "\ufffd" in question or "<|" in question:
            return
        if question.lower() in self.asked or not self.taken.isdisjoint(runs(question)):
            return
        self.asked.add(question.lower())
        if prompt := self.prompt(question):
            self.waiting.append(Saying(prompt, TEMPERATURES[self.made % len(TEMPERATURES)], self.limit))
            self.made += 1
