"""Chat templates by name, for models without one: those that many models share, under llama.cpp's names.

A model without a template is addressed in ChatML, as in llama-server: most models have seen it, and the
others read it as a transcript. What ends a turn there is also a stop string: if a vocabulary has no
such token, the model writes it in letters and continues with the next turn by itself.
"""

from edgespec.errors import SettingError

FALLBACK = "chatml"


def _roles(before: str, between: str, behind: str) -> str:
    """Returns a template that writes every turn alike, with the name of its role."""
    turn = f"{{{{ {before!r} + message['role'] + {between!r} }}}}"
    return (
        f"{{% for message in messages %}}{turn}{{{{ message['content'] + {behind!r} }}}}{{% endfor %}}"
        f"{{% if add_generation_prompt %}}{{{{ {before + 'assistant' + between!r} }}}}{{% endif %}}"
    )


def _named(system: str, user: str, assistant: str, begins: str) -> str:
    """Returns a template that writes the turns of each role in its own way; CONTENT is the message."""

    def turn(text: str) -> str:
        before, behind = text.split("CONTENT")
        return f"{{{{ {before!r} + message['content'] + {behind!r} }}}}"

    return (
        "{% for message in messages %}"
        f"{{% if message['role'] == 'system' %}}{turn(system)}"
        f"{{% elif message['role'] == 'assistant' %}}{turn(assistant)}"
        f"{{% else %}}{turn(user)}{{% endif %}}{{% endfor %}}"
        f"{{% if add_generation_prompt %}}{{{{ {begins!r} }}}}{{% endif %}}"
    )


def _system_with_user(user: str, assistant: str, begins: str, system: str = "CONTENT\n\n") -> str:
    """Returns a template whose system message goes into the user's next one."""
    texts = [text.split("CONTENT") for text in (user, assistant, system)]
    (user_begin, user_end), (answer_begin, answer_end), (system_begin, system_end) = texts
    return (
        "{% set system = namespace(text='') %}{% for message in messages %}"
        f"{{% if message['role'] == 'system' %}}"
        f"{{% set system.text = {system_begin!r} + message['content'] + {system_end!r} %}}"
        f"{{% elif message['role'] == 'assistant' %}}"
        f"{{{{ {answer_begin!r} + message['content'] + {answer_end!r} }}}}"
        f"{{% else %}}{{{{ {user_begin!r} + system.text + message['content'] + {user_end!r} }}}}"
        "{% set system.text = '' %}{% endif %}{% endfor %}"
        f"{{% if add_generation_prompt %}}{{{{ {begins!r} }}}}{{% endif %}}"
    )


WELL_KNOWN = {  # the template of a name, and the text at which a turn ends
    "chatml": (_roles("<|im_start|>", "\n", "<|im_end|>\n"), "<|im_end|>"),
    "command-r": (
        _named(
            "<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>CONTENT<|END_OF_TURN_TOKEN|>",
            "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>CONTENT<|END_OF_TURN_TOKEN|>",
            "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>CONTENT<|END_OF_TURN_TOKEN|>",
            "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
        ),
        "<|END_OF_TURN_TOKEN|>",
    ),
    "deepseek": (
        _named(
            "CONTENT", "### Instruction:\nCONTENT\n", "### Response:\nCONTENT\n<|EOT|>\n", "### Response:\n"
        ),
        "<|EOT|>",
    ),
    "deepseek2": (
        _named("CONTENT\n\n", "User: CONTENT\n\n", "Assistant: CONTENT<｜end▁of▁sentence｜>", "Assistant:"),
        "<｜end▁of▁sentence｜>",
    ),
    "deepseek3": (
        _named(
            "CONTENT\n\n",
            "<｜User｜>CONTENT",
            "<｜Assistant｜>CONTENT<｜end▁of▁sentence｜>",
            "<｜Assistant｜>",
        ),
        "<｜end▁of▁sentence｜>",
    ),
    "falcon3": (_roles("<|", "|>\n", "\n"), "<|endoftext|>"),
    "gemma": (
        _system_with_user(
            "<start_of_turn>user\nCONTENT<end_of_turn>\n",
            "<start_of_turn>model\nCONTENT<end_of_turn>\n",
            "<start_of_turn>model\n",
        ),
        "<end_of_turn>",
    ),
    "granite": (_roles("<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>\n"), "<|end_of_text|>"),
    "llama2": (
        _system_with_user("[INST] CONTENT [/INST]", "CONTENT</s>", "", "<<SYS>>\nCONTENT\n<</SYS>>\n\n"),
        "</s>",
    ),
    "llama3": (_roles("<|start_header_id|>", "<|end_header_id|>\n\n", "<|eot_id|>"), "<|eot_id|>"),
    "llama4": (_roles("<|header_start|>", "<|header_end|>\n\n", "<|eot|>"), "<|eot|>"),
    "mistral-v1": (_system_with_user(" [INST] CONTENT [/INST]", " CONTENT</s>", ""), "</s>"),
    "mistral-v3": (_system_with_user("[INST] CONTENT[/INST]", " CONTENT</s>", ""), "</s>"),
    "mistral-v3-tekken": (_system_with_user("[INST]CONTENT[/INST]", "CONTENT</s>", ""), "</s>"),
    "mistral-v7": (
        _named("[SYSTEM_PROMPT] CONTENT[/SYSTEM_PROMPT]", "[INST] CONTENT[/INST]", " CONTENT</s>", ""),
        "</s>",
    ),
    "mistral-v7-tekken": (
        _named("[SYSTEM_PROMPT]CONTENT[/SYSTEM_PROMPT]", "[INST]CONTENT[/INST]", "CONTENT</s>", ""),
        "</s>",
    ),
    "openchat": (
        _named(
            "CONTENT<|end_of_turn|>",
            "GPT4 Correct User: CONTENT<|end_of_turn|>",
            "GPT4 Correct Assistant: CONTENT<|end_of_turn|>",
            "GPT4 Correct Assistant:",
        ),
        "<|end_of_turn|>",
    ),
    "phi3": (_roles("<|", "|>\n", "<|end|>\n"), "<|end|>"),
    "phi4": (_roles("<|im_start|>", "<|im_sep|>", "<|im_end|>"), "<|im_end|>"),
    "vicuna": (_named("CONTENT\n\n", "USER: CONTENT\n", "ASSISTANT: CONTENT</s>\n", "ASSISTANT:"), "</s>"),
    "vicuna-orca": (
        _named("SYSTEM: CONTENT\n", "USER: CONTENT\n", "ASSISTANT: CONTENT</s>\n", "ASSISTANT:"),
        "</s>",
    ),
    "zephyr": (_roles("<|", "|>\n", "<|endoftext|>\n"), "<|endoftext|>"),
}
_TURN_ENDS = dict(WELL_KNOWN.values())


def well_known(name: str) -> str:
    """Returns the template of a name; raises SettingError if there is none."""
    if name not in WELL_KNOWN:
        raise SettingError(f"--chat-template {name} is not known: there are {', '.join(WELL_KNOWN)}")
    return WELL_KNOWN[name][0]


def template_or_fallback(own: str | None) -> str:
    """Returns a model's own template; ChatML if it has none."""
    return own or WELL_KNOWN[FALLBACK][0]


def turn_end(template: str) -> tuple[str, ...]:
    """Returns the texts at which turns of a template end: known only for those in this file."""
    return (_TURN_ENDS[template],) if template in _TURN_ENDS else ()
