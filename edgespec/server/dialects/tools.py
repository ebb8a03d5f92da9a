"""What a request says of tools, of thinking, and of the template that renders its conversation."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, StrictBool, StrictStr, model_validator

from edgespec.server.refusal import Refusal

SILENT = ("none", "minimal")  # efforts that mean: do not think
Name = Annotated[StrictStr, Field(min_length=1, max_length=256)]


class _Lenient(BaseModel):
    model_config = ConfigDict(extra="ignore", protected_namespaces=())


class Function(_Lenient):
    """A function that may be called. parameters: a JSON schema."""

    name: Name
    description: StrictStr | None = None
    parameters: dict[str, Any] | None = None


class Tool(_Lenient):
    """A tool. Those of other types than "function" are the client's own and passed over."""

    type: StrictStr
    function: Function | None = None


class NamedFunction(_Lenient):
    name: Name


class NamedTool(_Lenient):
    """The one tool that has to be called."""

    type: Literal["function"]
    function: NamedFunction


class ToolFields(BaseModel):
    """The part of a chat request that this file is about.

    functions, function_call: what tools and tool_choice were called before there were tools.
    """

    _older: bool = PrivateAttr(False)
    functions: list[Function] | None = None
    function_call: Literal["auto", "none"] | NamedFunction | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["auto", "none", "required"] | NamedTool | None = None
    parallel_tool_calls: StrictBool | None = None
    documents: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: StrictStr | None = None
    reasoning_format: Literal["auto", "none", "deepseek", "deepseek-legacy"] | None = None
    add_generation_prompt: StrictBool | None = None
    continue_final_message: StrictBool | StrictStr | None = None

    @model_validator(mode="after")
    def _as_tools(self) -> Self:
        """Says in the words of tools what the older ones say; where both are given, tools hold."""
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
        """True where a call is to be told in the older words."""
        return self._older

    def usable_tools(self) -> list[dict[str, Any]]:
        """Returns the functions that may be called, as templates read them."""
        if self.tool_choice == "none":
            return []
        functions = [tool.function for tool in self.tools or () if tool.type == "function" and tool.function]
        if isinstance(self.tool_choice, NamedTool):
            wanted = self.tool_choice.function.name
            functions = [function for function in functions if function.name == wanted]
            if not functions:
                raise Refusal(
                    400,
                    f"tool_choice names {wanted!r}: no tool of this name was given",
                    param="tool_choice",
                    code="invalid_value",
                )
        if self.tool_choice == "required" and not functions:
            sentence = "tool_choice is 'required', but there are no tools: give some"
            raise Refusal(400, sentence, param="tool_choice", code="invalid_value")
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
        """True where the answer has to be a call."""
        return self.tool_choice == "required" or isinstance(self.tool_choice, NamedTool)

    def variables(self) -> dict[str, Any]:
        """Returns the variables of the template: those asked for, and how much thinking is wanted."""
        effort = self.reasoning_effort
        thinking = {} if effort is None else {"enable_thinking": effort not in SILENT}
        told = {"reasoning_effort": effort} if effort and effort not in SILENT else {}
        return {**thinking, **told, **(self.chat_template_kwargs or {})}

    @property
    def shows_thoughts_apart(self) -> bool:
        """True where thoughts are `reasoning_content`, False where they are part of the content."""
        return self.reasoning_format != "none"
