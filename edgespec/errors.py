"""Every error EdgeSpec raises on purpose. The message is one sentence for the person at the screen.

EdgeSpecError                  something the user can act on; `exit_code` 1
├── SettingError               a setting or argument that makes no sense; `exit_code` 2
│   └── GrammarError           a schema, grammar or regular expression that cannot be kept to
├── ModelError                 a model cannot be used
│   ├── ModelFileError         the file is missing, unreadable, truncated or not a GGUF
│   ├── ModelUnsupportedError  the file is sound, but this program cannot generate with it
│   └── DoesNotFitError        a pair takes more memory than is free
│       └── DeviceFullError    a device had less memory than it reported
├── PairMismatchError          target and draft do not share a vocabulary
├── TemplateError              a chat template is missing, broken, or refuses the messages
│   └── TemplateOverrunError   a chat template takes more time or memory than any needs
├── PromptTooLongError         the prompt does not fit the context
├── QueueFullError             as many requests wait as may wait
├── GivenUpError               whoever asked has left
├── EngineError                llama.cpp failed while evaluating
│   ├── NoRoomError            no free cells in the KV cache (llama_decode 1)
│   ├── DecodeAbortedError     evaluation was interrupted (llama_decode 2)
│   ├── InvalidBatchError      llama.cpp refused the batch (llama_decode -1)
│   ├── FatalDecodeError       the backend failed in the middle (llama_decode < -1)
│   └── LogitsError            the model returned values that are not numbers
├── EngineDiedError            the process that runs llama.cpp was ended by a signal
├── MachineLostError           another machine, which evaluates layers, is not there or went away
├── DownloadError              a model cannot be had from the hub
│   └── HubLostError           the hub does not answer at all
├── SessionError               a kept conversation cannot be found, read or written
├── EndpointError              a server refuses, or fails
│   └── EndpointLostError      a server is not there, or went away in the middle
├── ToolServerError            a server of tools cannot be used
└── PlanError                  how fast a pair would run cannot be found out
"""


class EdgeSpecError(Exception):
    """A failure that is reported to the user in one sentence: what, which value, what to do."""

    exit_code = 1


class SettingError(EdgeSpecError):
    """A setting or argument has a value that makes no sense."""

    exit_code = 2


class UnknownPlaceError(SettingError):
    """Tensors are to lie in a place that does not exist here."""


class GrammarError(SettingError):
    """A JSON schema, grammar or regular expression is wrong, or too complex to follow."""


class ModelError(EdgeSpecError):
    """A model cannot be used."""


class ModelFileError(ModelError):
    """The file is missing, unreadable, truncated or not a GGUF."""


class ModelUnsupportedError(ModelError):
    """The file is sound, but this program cannot generate text with it."""


class DoesNotFitError(ModelError):
    """Models and caches take more memory than is free; the message says what would fit."""


class DeviceFullError(DoesNotFitError):
    """llama.cpp was refused memory that was thought to be free, usually on a graphics card."""


class PairMismatchError(EdgeSpecError):
    """Target and draft do not share a vocabulary, so guesses mean nothing to the target."""


class TemplateError(EdgeSpecError):
    """A chat template is missing, broken, or refuses the messages."""


class TemplateOverrunError(TemplateError):
    """A chat template takes more time or memory than any needs, and was ended."""


class PromptTooLongError(EdgeSpecError):
    """The prompt has more tokens than the context holds."""

    def __init__(self, n_prompt: int, n_ctx: int, *, at_least: bool = False) -> None:
        tokens = f"{'at least ' if at_least else ''}{n_prompt:,} tokens"
        super().__init__(
            f"the prompt has {tokens} and exceeds the available context size of {n_ctx:,}: "
            "shorten the prompt, or raise --ctx where the model allows it"
        )
        self.n_prompt, self.n_ctx = n_prompt, n_ctx


class QueueFullError(EdgeSpecError):
    """The queue is full."""


class GivenUpError(EdgeSpecError):
    """Whoever asked has left, so the work was ended."""

    def __init__(self) -> None:
        super().__init__("nobody waits for this request any more")


class EngineError(EdgeSpecError):
    """llama.cpp failed while evaluating."""


class NoRoomError(EngineError):
    """The KV cache has no free cells for the batch; its contents are unchanged."""


class DecodeAbortedError(EngineError):
    """Evaluation was interrupted; part of the batch may be in the KV cache."""


class InvalidBatchError(EngineError):
    """llama.cpp refused the batch; the KV cache is unchanged."""


class FatalDecodeError(EngineError):
    """The backend failed in the middle of a batch; part of it may be in the KV cache."""


class LogitsError(EngineError):
    """The model returned logits that are not numbers: its weights are damaged or overflowed."""


class EngineDiedError(EdgeSpecError):
    """The process that runs llama.cpp was ended by a signal (an assertion, no memory, a kill)."""


class MachineLostError(EdgeSpecError):
    """Another machine that should evaluate layers does not answer, cannot serve us, or went away."""


class DownloadError(EdgeSpecError):
    """The hub cannot provide a model, or a file is not what the hub says."""


class HubLostError(DownloadError):
    """The hub does not answer, whatever it is asked for."""


class EndpointError(EdgeSpecError):
    """A server refuses a request, or fails in the middle of it.

    status: the HTTP status (0: in the middle of an answer). code: the server's code for programs.
    retry_s: seconds after which it is worth asking again, if the server says so.
    """

    def __init__(
        self, message: str, *, status: int = 0, code: str | None = None, retry_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.retry_s = status, code, retry_s


class EndpointLostError(EndpointError):
    """A server is not there, or went away in the middle of an answer."""


class SessionError(EdgeSpecError):
    """A saved chat cannot be found, read or written."""


class ToolServerError(EdgeSpecError):
    """A server of tools cannot be started, has ended, or does not answer as it should."""


class PlanError(EdgeSpecError):
    """The speed of a pair cannot be estimated."""
