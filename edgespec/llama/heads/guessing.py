"""The context that guesses for a target: of a draft model, or of a head."""

from edgespec.llama.context import Context
from edgespec.llama.heads.assistant_context import AssistantContext
from edgespec.llama.heads.block_context import BlockContext
from edgespec.llama.heads.head_context import HeadContext
from edgespec.llama.heads.medusa_context import MedusaContext, MedusaModel
from edgespec.llama.heads.turns_context import TurnsContext
from edgespec.llama.model import Model
from edgespec.llama.settings import ContextSettings
from edgespec.llama.translated_context import TranslatedContext
from edgespec_models.gguf.heads import Head

AnyHead = HeadContext | BlockContext | AssistantContext | MedusaContext
DraftContext = Context | TranslatedContext | AnyHead


def head_context(
    model: Model | MedusaModel, target: Context, settings: ContextSettings, head: Head
) -> AnyHead:
    """Returns the context for a head of its kind."""
    if isinstance(model, MedusaModel):
        return MedusaContext(model, target, settings)
    if head.kind == "dflash":
        return BlockContext(model, target, settings, head)
    if head.kind == "assistant":
        return AssistantContext(model, target, settings, head)
    if head.kind == "mtp" and head.n_blocks > 1:
        return TurnsContext(model, target, settings, head)
    return HeadContext(model, target, settings, head)
