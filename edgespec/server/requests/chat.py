"""The conversation that every dialect's becomes: OpenAI's chat request."""

from typing import Annotated, ClassVar

from pydantic import Field, StrictBool

from edgespec.core.request import Scoring
from edgespec.server.refusal import invalid, unsupported
from edgespec.server.requests.fields import Listed, Whole
from edgespec.server.requests.generation import GenerationRequest, Top
from edgespec.server.requests.messages import RequestMessage
from edgespec.server.requests.tools import ToolFields


class ChatRequest(GenerationRequest, ToolFields):
    """POST /v1/chat/completions."""

    limits: ClassVar = ("max_completion_tokens", "max_tokens", "n_predict")

    messages: Annotated[Listed[RequestMessage], Field(min_length=1)]
    max_completion_tokens: Annotated[Whole, Field(ge=-1)] | None = None
    verbose: StrictBool | None = None
    logprobs: StrictBool | None = None
    top_logprobs: Top | None = None

    def scoring(self) -> Scoring | None:
        return Scoring(self.top_logprobs or 0, bool(self.post_sampling_probs)) if self.logprobs else None

    def check(self) -> None:
        """Refuses what would silently be ignored."""
        if self.top_logprobs and not self.logprobs:
            sentence = "top_logprobs is for requests with logprobs: true: add it, or leave both out"
            raise invalid("top_logprobs", sentence)
        if self.add_generation_prompt and self.continue_final_message:
            sentence = "an answer starts anew or continues, not both: leave one of them out"
            raise unsupported("continue_final_message", sentence)
        if len(self.messages) > 1 and all(m.role == "assistant" for m in self.messages[-2:]):
            sentence = "the last two messages are both the assistant's: only one can be continued"
            raise invalid("messages", sentence)

    def goes_on(self) -> bool:
        """Returns whether the last message is the beginning of the answer."""
        last = self.messages[-1]
        if self.continue_final_message is not None:
            return bool(self.continue_final_message)
        return last.role == "assistant" and not (last.tool_calls or last.function_call)
