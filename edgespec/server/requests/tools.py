"""The fields of a request on tools, reasoning, and the template that renders its conversation."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, PrivateAttr, StrictBool, StrictStr, model_validator

from edgespec.server.refusal import invalid, unsupported
from edgespec.server.requests.fields import Fields, Listed

SILENT = ("none", "minimal")  # efforts that mean: do not reason
Name = Annotated[StrictStr, Field(min_length=1, max_length=256)]


class Function(Fields):
    """A function that may be called. parameters: a JSON schema."""

    name: Name
    description: StrictStr | None = None
    parameters: dict[str, Any] | None = None


class Tool(Fields):
    """A tool. Types other than "function" belong to the client, and are ignored."""

    type: StrictStr
    function: Function | None = None


class NamedFunction(Fields):
    name: Name


class NamedTool(Fields):
    """The one tool that must be called."""

    type: Literal["function"]
    function: NamedFunction


class AllowedTools(Fields):
    """Some of the tools, and whether one of them has to be called."""

    mode: Literal["auto", "required"] = "auto"
    tools: Annotated[Listed[NamedTool], Field(min_length=1)]


class AllowedChoice(Fields):
    """OpenAI's way to offer all tools, so that prompts begin alike, and to allow a few of them."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


class CustomChoice(Fields):
    """OpenAI's way to have a tool called whose argument is a text."""

    type: Literal["custom"]


class ToolFields(Fields):
    """The fields of a chat request on tools and reasoning.

    functions, function_call: the names from before there were tools and tool_choice. strict_calls: ours;
    False lets a model write its calls as it likes.
    """

    _older: bool = PrivateAttr(False)
    functions: Listed[Function] | None = None
    function_call: Literal["auto", "none"] | NamedFunction | None = None
    tools: Listed[Tool] | None = None
    tool_choice: Literal["auto", "none", "required"] | NamedTool | AllowedChoice | CustomChoice | None = None
    parallel_tool_calls: StrictBool | None = None
    strict_calls: StrictBool | None = None
    documents: Listed[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: StrictStr | None = None
    reasoning_format: Literal["auto", "none", "deepseek", "deepseek-legacy"] | None = None
    add_generation_prompt: StrictBool | None = None
    continue_final_message: StrictBool | StrictStr | None = None

    @model_validator(mode="after")
    def _as_tools(self) -> Self:
        """Turns the older fields into tools; if both are given, tools win."""
        if self.functions and self.tools is None:
            self.tools = [Tool(type="function", function=function) for function in self.functions]
            self.parallel_tool_calls, self._older = False, True
            if isinstance(self.function_call, NamedFunction):
                self.tool_choice = NamedTool(type="function", function=self.function_call)
            elif self.function_call:
                self.tool_choice = self.function_call
        return self

    @property
    def calls_functions(self) -> bool:
        """True if calls are reported in the older format."""
        return self._older

    def usable_tools(self) -> list[dict[str, Any]]:
        """Returns the functions that may be called, as templates read them. Raises Refusal."""
        if self.tool_choice == "none":
            return []
        if isinstance(self.tool_choice, CustomChoice):
            sentence = "its type 'custom' is not supported: name a tool of type 'function'"
            raise unsupported("tool_choice", sentence)
        functions = [tool.function for tool in self.tools or () if tool.type == "function" and tool.function]
        known = {function.name for function in functions}
        allowed = {tool.function.name for tool in self._allowed()}
        if allowed and (wrong := sorted(allowed - known)):
            raise invalid("tool_choice", f"tool_choice names {wrong[0]!r}: no tool of this name was given")
        functions = [function for function in functions if not allowed or function.name in allowed]
        if self.must_call and not functions:
            raise invalid("tool_choice", "tool_choice is 'required', but there are no tools: give some")
        return [
            {
                "type": "function",
                "function": {
                    "name": function.name,
                    "description": function.description or "",
                    "parameters": function.parameters or {"type": "object", "properties": {}},
                },
            }
            for function in functions
        ]

    @property
    def must_call(self) -> bool:
        """True if the answer must be a call."""
        choice = self.tool_choice
        if isinstance(choice, AllowedChoice):
            return choice.allowed_tools.mode == "required"
        return choice == "required" or isinstance(choice, NamedTool)

    def _allowed(self) -> list[NamedTool]:
        """Returns the tools that the choice names; none if it names none."""
        choice = self.tool_choice
        if isinstance(choice, NamedTool):
            return [choice]
        return choice.allowed_tools.tools if isinstance(choice, AllowedChoice) else []

    def variables(self) -> dict[str, Any]:
        """Returns the variables of the template: the requested ones, and how much to reason."""
        effort = self.reasoning_effort
        thinking = {} if effort is None else {"enable_thinking": effort not in SILENT}
        asked = {"reasoning_effort": effort} if effort and effort not in SILENT else {}
        return {**thinking, **asked, **(self.chat_template_kwargs or {})}

    @property
    def shows_thoughts_apart(self) -> bool:
        """True if reasoning goes to `reasoning_content`, False if it stays in the content."""
        return self.reasoning_format != "none"
