"""Name the control tokens of the pair, in the order of their ids.

Two kinds of control token. CONTROL tokens are structure: llama.cpp prints them only when asked for
special tokens, and finds them in text only when asked to parse special text, so a user cannot forge a
turn. USER_DEFINED tokens (`<think>`, `<tool_call>` and their ends) are words that a client must see:
llama.cpp always prints them and always recognises them, so a parser that reads plain text finds the call.
"""

END_OF_TEXT = "<|endoftext|>"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"
FIM_PREFIX, FIM_SUFFIX, FIM_MIDDLE = "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"
CONTROL = [
    END_OF_TEXT,
    TURN_START,
    TURN_END,
    FIM_PREFIX,
    FIM_SUFFIX,
    FIM_MIDDLE,
    *(f"<|spare_{i}|>" for i in range(32)),
]
USER_DEFINED = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
SPECIAL = CONTROL + USER_DEFINED
