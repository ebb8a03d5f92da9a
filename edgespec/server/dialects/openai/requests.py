"""OpenAI's requests besides chats: text that continues, and gaps, as Mistral has them."""

from pydantic import StrictBool, StrictStr

from edgespec.core.request import Scoring
from edgespec.server.refusal import unsupported
from edgespec.server.requests.fields import Listed, TokenId
from edgespec.server.requests.generation import GenerationRequest, Seed, Top


class CompletionRequest(GenerationRequest):
    """POST /v1/completions: text continues where the prompt ends."""

    prompt: StrictStr | Listed[TokenId] | Listed[StrictStr] | Listed[Listed[TokenId]]
    logprobs: Top | None = None
    echo: StrictBool | None = None
    suffix: StrictStr | None = None

    def scoring(self) -> Scoring | None:
        return None if self.logprobs is None else Scoring(self.logprobs, bool(self.post_sampling_probs))

    def check(self) -> None:
        """Refuses what would silently be ignored."""
        if self.echo and self.logprobs is not None:
            sentence = "logprobs of an echoed prompt are not returned: leave out echo, or logprobs"
            raise unsupported("logprobs", sentence)
        if self.suffix is not None and not isinstance(self.prompt, str):
            raise unsupported("suffix", "suffix works with one text prompt: give the prompt as text")
        if self.echo and not all(isinstance(prompt, str) for prompt in self.prompts()):
            raise unsupported("echo", "token ids cannot be echoed: give the prompt as text")

    def prompts(self) -> list[str | tuple[int, ...]]:
        """Returns the prompts one by one; raises Refusal for none, or too many."""
        given = self.prompt
        if isinstance(given, str):
            return [given]
        if given and isinstance(given[0], int):
            return [tuple(token for token in given if isinstance(token, int))]
        return self.counted([p if isinstance(p, str) else tuple(p) for p in given if not isinstance(p, int)])


class FillRequest(GenerationRequest):
    """POST /v1/fim/completions, as Mistral has it: text between a prompt and a suffix."""

    prompt: StrictStr
    suffix: StrictStr = ""
    random_seed: Seed | None = None
