"""Write a trained network as a GGUF file that llama.cpp loads without conversion.

`edgespec_train/model_file.py` says how weights are named and ordered.
"""

import json
from pathlib import Path

import gguf
from tokenizers import Tokenizer

from edgespec_train.model_file import About, add_shape, finish, open_writer, tensors
from edgespec_train.network import Llama
from edgespec_train.recipes import marks, template
from edgespec_train.recipes import tokenizer as tok


def add_vocabulary(writer: gguf.GGUFWriter, tokenizer: Tokenizer) -> None:
    """Write pieces, merges, kinds, and the roles of the control tokens.

    No start token is ever added (`add_bos_token` false): training text has none, a chat begins with
    `<|im_start|>` itself. llama.cpp wants an id all the same, and gets end-of-text.
    """
    pieces = [str(tokenizer.id_to_token(i)) for i in range(tokenizer.get_vocab_size())]
    if len(set(pieces)) != len(pieces):
        raise ValueError("two pieces of the vocabulary have the same text")
    kinds = dict.fromkeys(marks.CONTROL, gguf.TokenType.CONTROL)
    kinds |= dict.fromkeys(marks.USER_DEFINED, gguf.TokenType.USER_DEFINED)
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(tok.PRE)
    writer.add_token_list(pieces)
    writer.add_token_types([kinds.get(p, gguf.TokenType.NORMAL) for p in pieces])
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in merges])
    writer.add_bos_token_id(tok.token_id(tokenizer, marks.END_OF_TEXT))
    writer.add_pad_token_id(tok.token_id(tokenizer, marks.END_OF_TEXT))
    writer.add_eos_token_id(tok.token_id(tokenizer, marks.TURN_END))
    writer.add_eot_token_id(tok.token_id(tokenizer, marks.TURN_END))
    writer.add_add_bos_token(False)
    writer.add_add_eos_token(False)
    writer.add_add_space_prefix(False)
    writer.add_uint32(gguf.Keys.Tokenizer.FIM_PRE_ID, tok.token_id(tokenizer, marks.FIM_PREFIX))
    writer.add_uint32(gguf.Keys.Tokenizer.FIM_SUF_ID, tok.token_id(tokenizer, marks.FIM_SUFFIX))
    writer.add_uint32(gguf.Keys.Tokenizer.FIM_MID_ID, tok.token_id(tokenizer, marks.FIM_MIDDLE))
    writer.add_chat_template(template.SOURCE)


def export(model: Llama, tokenizer: Tokenizer, path: Path, kind: str, about: About) -> None:
    """Write `path` at once: a reader sees the old file or the whole new one. `kind`: of its matrices."""
    writer = open_writer("llama", about, "PSF-2.0", matrices=kind)
    add_shape(writer, model.shape)
    add_vocabulary(writer, tokenizer)
    finish(writer, tensors(model), kind, path)
