"""The known families, and how to recognise one from a chat template.

Every model file has a template, and only it shows how calls look: it contains one of the markers
below; rarer ones are tried first.
"""

from edgespec.chat.families.addressed import (
    HARMONY_CALLS,
    HARMONY_TAGS,
    MUSE_TAGS,
    Muse,
    harmony,
    harmony_form,
)
from edgespec.chat.families.family import Family
from edgespec.chat.families.json_calls import JsonCalls, NamedCall
from edgespec.chat.families.literal_calls import QUOTE, GemmaCall, PythonCalls
from edgespec.chat.families.tagged_calls import NestedCall, TaggedCall

JSON = JsonCalls()
LISTED = JsonCalls(listed=True)
LLAMAS = JsonCalls(names=("name", "parameters"))
COHERES = ("tool_name", "parameters")
THINK = (("<think>", "</think>"),)
FUNCTION = TaggedCall(
    name_ends=(">",),
    key="<parameter=",
    key_ends=">",
    value_ends="</parameter>",
    ends=("</function>",),
    lines=True,
)


def _arg_key(suffix: str = "") -> TaggedCall:
    return TaggedCall(
        name_ends=("\n", f"<tool_sep{suffix}>", f"<arg_key{suffix}>", f"</tool_call{suffix}>"),
        key=f"<arg_key{suffix}>",
        key_ends=f"</arg_key{suffix}>",
        value=f"<arg_value{suffix}>",
        value_ends=f"</arg_value{suffix}>",
        ends=(f"</tool_call{suffix}>",),
    )


def _invoke(
    prefix: str,
    opening: str = "invoke",
    argument: str = "parameter",
    attribute: str = "",
    around: tuple[str, str] | None = None,
) -> TaggedCall:
    return TaggedCall(
        name_ends=('">',),
        key=f'<{prefix}{argument} name="',
        key_ends=">" if attribute else '">',
        value_ends=f"</{prefix}{argument}>",
        ends=(f"</{prefix}{opening}>",),
        attribute=attribute,
        around=around,
    )


PLAIN = Family("plain")
HERMES = Family(
    "hermes", {"<tool_call>": JsonCalls(around=("\n", "\n</tool_call>"))}, ("</tool_call>",), THINK
)
QWEN_CODER = Family(
    "qwen-coder",
    {"<function=": FUNCTION},
    ("<tool_call>", "</tool_call>"),
    THINK,
)
SEED = Family(
    "seed",
    {"<function=": FUNCTION},
    ("<seed:tool_call>", "</seed:tool_call>"),
    (("<seed:think>", "</seed:think>"),),
)
GLM = Family("glm", {"<tool_call>": _arg_key()}, ("</tool_call>",), THINK)
LLAMA = Family("llama3", {"<|python_tag|>": LLAMAS}, bare=LLAMAS, begins=('{"name"',))
MISTRAL_LIST = Family("mistral-list", {"[TOOL_CALLS]": LISTED}, thoughts=(("[THINK]", "[/THINK]"),))
MISTRAL = Family(
    "mistral",
    {"[TOOL_CALLS]": NamedCall(("[ARGS]",), id_ends="[CALL_ID]", written=("", "[ARGS]", ""))},
    thoughts=(("[THINK]", "[/THINK]"),),
    tags=("[ARGS]", "[CALL_ID]"),
)
GEMMA = Family(
    "gemma",
    {"<|tool_call>": GemmaCall("<tool_call|>")},
    ("<tool_call|>",),
    (("<|channel>thought\n", "<channel|>"),),
    stops=("<|tool_response>",),
    tags=(QUOTE, "<|channel>"),
)
DEEPSEEK_SECTIONS = (
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁end｜>",
    "```<｜tool▁call▁end｜>",
)
DEEPSEEK_R1 = Family(
    "deepseek-r1",
    {
        "<｜tool▁call▁begin｜>": NamedCall(
            ("\n",),
            id_ends="<｜tool▁sep｜>",
            id_first=True,
            ends=("<｜tool▁call▁end｜>",),
            written=("function<｜tool▁sep｜>", "\n```json\n", "\n```<｜tool▁call▁end｜>"),
        )
    },
    DEEPSEEK_SECTIONS,
    THINK,
    tags=("<｜tool▁sep｜>",),
)
DEEPSEEK_V3 = Family(
    "deepseek-v3",
    {
        "<｜tool▁call▁begin｜>": NamedCall(
            ("<｜tool▁sep｜>",),
            ends=("<｜tool▁call▁end｜>",),
            written=("", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),
        )
    },
    DEEPSEEK_SECTIONS,
    THINK,
    tags=("<｜tool▁sep｜>",),
)
DSML = "｜DSML｜"
DEEPSEEK_DSML = Family(
    "deepseek-dsml",
    {f'<{DSML}invoke name="': _invoke(DSML, attribute='" string="')},
    tuple(f"{bracket}{DSML}{word}>" for word in ("function_calls", "tool_calls") for bracket in ("<", "</")),
    THINK,
    tags=(DSML,),
)
HARMONY = Family(
    "harmony",
    whole=harmony,
    tags=HARMONY_TAGS,
    final="<|channel|>final<|message|>",
    forms=dict.fromkeys((*HARMONY_CALLS, "to=functions."), harmony_form),
    begins=("to=functions.",),
)
GRANITE = Family("granite", {"<|tool_call|>": LISTED}, ("<|/tool_call|>", "<|end_of_tool_call|>"), THINK)
COMMAND_R7B = Family(
    "command-r7b",
    {"<|START_ACTION|>": JsonCalls(listed=True, names=COHERES, around=("", "<|END_ACTION|>"))},
    ("<|END_ACTION|>",),
    (("<|START_THINKING|>", "<|END_THINKING|>"),),
    wraps=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
)
ACTIONS = JsonCalls(listed=True, names=COHERES, around=("\n", "\n```"))
COMMAND_R = Family("command-r", {"Action:\n```json": ACTIONS, "Action: ```json": ACTIONS}, ("```",))
KIMI = Family(
    "kimi",
    {
        "<|tool_call_begin|>": NamedCall(
            ("<|tool_call_argument_begin|>",),
            before=r"^functions\.",
            ends=("<|tool_call_end|>",),
            written=("functions.", ":#<|tool_call_argument_begin|>", "<|tool_call_end|>"),
        )
    },
    ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_end|>"),
    THINK,
    tags=("<|tool_call_argument_begin|>",),
)
SOLAR = Family(
    "solar",
    {
        "<|tool_call:begin|>": NamedCall(
            ("<|tool_call:args|>",),
            id_ends="<|tool_call:name|>",
            id_first=True,
            ends=("<|tool_call:end|>",),
            written=("#<|tool_call:name|>", "<|tool_call:args|>", "<|tool_call:end|>"),
        )
    },
    ("<|tool_calls|>", "<|tool_call:end|>", "<|calls|>", "<|content|>", "<|end|>", "<|begin|>assistant"),
    (("<|think|>", "<|end|>"),),
    tags=("<|tool_call:args|>", "<|tool_call:name|>"),
)
LFM = Family("lfm", {"<|tool_call_start|>": PythonCalls("<|tool_call_end|>")}, ("<|tool_call_end|>",), THINK)
FUNCTIONARY = Family(
    "functionary-3.1",
    {"<function=": NamedCall((">",), ends=("</function>",), written=("", ">", "</function>"))},
    ("</function>",),
)
NAMED_LINE = NamedCall(("\n",), written=("", "\n", ""))
FUNCTIONARY_ALL = Family(
    "functionary-3.2",
    {">>>": NAMED_LINE},
    (">>>all\n",),
    bare=NAMED_LINE,
    begins=("#\n",),
    leading=("all\n",),
)
MINIMAX = Family(
    "minimax", {'<invoke name="': _invoke("")}, ("<minimax:tool_call>", "</minimax:tool_call>"), THINK
)
MINICPM = Family(
    "minicpm", {'<function name="': _invoke("", "function", "param", around=("<![CDATA[", "]]>"))}, (), THINK
)
CALLS = "<tool_calls>", "</tool_calls>"
IN_CALLS = JsonCalls(listed=True, around=("", CALLS[1]))
TOOL_CALLS = Family("tool-calls", {CALLS[0]: IN_CALLS}, CALLS[1:], THINK)
APRIEL = Family(
    "apriel",
    {CALLS[0]: IN_CALLS},
    (CALLS[1], "[BEGIN FINAL RESPONSE]", "<|end|>"),
    (("Here are my reasoning steps:\n", "[BEGIN FINAL RESPONSE]"),),
)
NEMOTRON = Family(
    "nemotron", {"<TOOLCALL>": JsonCalls(listed=True, around=("", "</TOOLCALL>"))}, ("</TOOLCALL>",), THINK
)
FIREFUNCTION = Family("firefunction", {"functools": LISTED})
APERTUS = Family(
    "apertus",
    {"<|tools_prefix|>": JsonCalls(keyed=True, listed=True, around=("", "<|tools_suffix|>"))},
    ("<|tools_suffix|>",),
    (("<|inner_prefix|>", "<|inner_suffix|>"),),
)
GIGACHAT = Family(
    "gigachat",
    {"<|function_call|>": JSON, "function call<|role_sep|>": JSON},
    ("<|message_sep|>",),
    tags=("<|role_sep|>",),
)

HUNYUAN = Family(
    "hunyuan",
    {"<tool_call:opensource>": _arg_key(":opensource")},
    ("<tool_calls:opensource>", "</tool_calls:opensource>"),
    (("<think:opensource>", "</think:opensource>"),),
)
MUSE_CALL = _invoke("atem:")
MUSE = Family(
    "muse",
    forms={'<atem:invoke name="': MUSE_CALL.form},
    final="to=user<|message|>",
    tags=MUSE_TAGS,
    whole=Muse('<atem:invoke name="', MUSE_CALL, ("<atem:function_calls>", "</atem:function_calls>")),
)
MARK = "]<]minimax[>["
MINIMAX_M3 = Family(
    "minimax-m3",
    {f'{MARK}<invoke name="': NestedCall(MARK)},
    (f"{MARK}<tool_call>", f"{MARK}</tool_call>"),
    (("<mm:think>", "</mm:think>"),),
    tags=(MARK,),
    wraps=("</mm:think>",),
)
KIMI_K3 = Family(
    "kimi-k3",
    {
        '<|open|>call tool="': TaggedCall(
            name_ends=('"',),
            head_ends="<|sep|>",
            key='<|open|>argument key="',
            key_ends="<|sep|>",
            attribute='" type="',
            value_ends="<|close|>argument<|sep|>",
            ends=("<|close|>call<|sep|>",),
        ),
    },
    tuple(f"<|{w}|>{part}<|sep|>" for w in ("open", "close") for part in ("tools", "response", "message")),
    (("<|open|>think<|sep|>", "<|close|>think<|sep|>"),),
    tags=("<|open|>", "<|close|>", "<|sep|>"),
)

MARKERS: tuple[tuple[tuple[str, ...], Family], ...] = (
    (("<|channel|>", "<|message|>", "<|start|>"), HARMONY),
    (("<|tool_call>", "call:"), GEMMA),
    ((DSML,), DEEPSEEK_DSML),
    (("<|open|>", "<|sep|>", "argument"), KIMI_K3),
    (("<arg_key:opensource>",), HUNYUAN),
    (("arg_key", ":opensource"), HUNYUAN),
    (("atem:invoke",), MUSE),
    ((MARK,), MINIMAX_M3),
    (("<｜tool▁sep｜>", "```json"), DEEPSEEK_R1),
    (("<｜tool▁sep｜>",), DEEPSEEK_V3),
    (("[TOOL_CALLS]", "[ARGS]"), MISTRAL),
    (("[TOOL_CALLS]",), MISTRAL_LIST),
    (("<|START_ACTION|>",), COMMAND_R7B),
    (("Action:", "```json", "tool_name"), COMMAND_R),
    (("<|tool_call_begin|>",), KIMI),
    (("<|tool_call:begin|>",), SOLAR),
    (("<minimax:tool_call>",), MINIMAX),
    (("<seed:tool_call>",), SEED),
    (("<arg_key>",), GLM),
    (("<function=", "<parameter="), QWEN_CODER),
    (("<function name=", "<param name="), MINICPM),
    (("<function=",), FUNCTIONARY),
    ((">>>", "all\n"), FUNCTIONARY_ALL),
    ((">>>all",), FUNCTIONARY_ALL),
    (("functools",), FIREFUNCTION),
    (("<|tool_call_start|>",), LFM),
    (("<|tool_list_start|>",), LFM),
    (("List of tools: [",), LFM),
    (("<TOOLCALL>",), NEMOTRON),
    (("<|tools_prefix|>",), APERTUS),
    (("<|function_call|>",), GIGACHAT),
    (("function call", "<|role_sep|>"), GIGACHAT),
    (("[BEGIN FINAL RESPONSE]",), APRIEL),
    (("<tool_calls>",), TOOL_CALLS),
    (("<|tool_call|>",), GRANITE),
    (("<tool_call>",), HERMES),
    (("python_tag",), LLAMA),
    (("ipython", '"parameters": '), LLAMA),
    (("<think>",), Family("thinking", thoughts=THINK)),
)


def family_of(template: str) -> Family:
    """Returns the family whose markers are in a chat template; PLAIN if there are none."""
    found = (family for markers, family in MARKERS if all(marker in template for marker in markers))
    return next(found, PLAIN)
