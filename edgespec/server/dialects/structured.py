"""The form of an answer, in the fields of OpenAI, llama.cpp and vLLM."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, StrictBool, StrictStr

from edgespec.errors import GrammarError
from edgespec.grammar.grammar import Grammar, any_json_object, grammar_text, json_schema, one_of
from edgespec.server.refusal import Refusal

Schema = dict[str, Any] | bool
Choices = Annotated[list[StrictStr], Field(min_length=1, max_length=1000)]


class NamedSchema(BaseModel):
    """OpenAI's `json_schema` object. strict false: what cannot be enforced is ignored."""

    name: StrictStr | None = None
    description: StrictStr | None = None
    schema_: Annotated[Schema | None, Field(alias="schema")] = None
    strict: StrictBool | None = None


class ResponseFormat(BaseModel):
    """OpenAI's `response_format`; `schema` beside `json_object` is llama.cpp's."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None
    schema_: Annotated[Schema | None, Field(alias="schema")] = None


class StructuredOutputs(BaseModel):
    """vLLM's `structured_outputs` (the old `guided_*` fields mean the same)."""

    json_: Annotated[Schema | StrictStr | None, Field(alias="json")] = None
    regex: StrictStr | None = None
    choice: Choices | None = None
    grammar: StrictStr | None = None
    json_object: StrictBool | None = None


class FormFields(BaseModel):
    """The form of an answer. At most one of the fields."""

    response_format: ResponseFormat | None = None
    json_schema: Schema | None = None
    grammar: StrictStr | None = None
    regex: StrictStr | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema | StrictStr | None = None
    guided_regex: StrictStr | None = None
    guided_choice: Choices | None = None
    guided_grammar: StrictStr | None = None

    def form(self) -> Grammar | None:
        """Returns the grammar of the answer, None for any text. Raises Refusal."""
        outputs = self.structured_outputs or StructuredOutputs()
        wanted = {
            "response_format": _of_format(self.response_format),
            "json_schema": ("object", None) if self.json_schema == {} else _schema(self.json_schema),
            "grammar": _said("grammar", self.grammar),
            "regex": _said("regex", self.regex),
            "structured_outputs.json": _schema(outputs.json_),
            "structured_outputs.regex": _said("regex", outputs.regex),
            "structured_outputs.choice": _said("choice", outputs.choice),
            "structured_outputs.grammar": _said("grammar", outputs.grammar),
            "structured_outputs.json_object": ("object", None) if outputs.json_object else None,
            "guided_json": _schema(self.guided_json),
            "guided_regex": _said("regex", self.guided_regex),
            "guided_choice": _said("choice", self.guided_choice),
            "guided_grammar": _said("grammar", self.guided_grammar),
        }
        said = {name: how for name, how in wanted.items() if how}
        if len(said) > 1:
            names = " and ".join(said)
            raise Refusal(
                400,
                f"{names} are both given, but an answer has one form: leave one out",
                param=list(said)[1].partition(".")[0],
                code="invalid_value",
            )
        for name, (kind, value) in said.items():
            param = name.partition(".")[0]
            try:
                return _grammar(kind, value)
            except GrammarError as error:
                raise Refusal(400, f"{param}: {error}", param=param, code="invalid_value") from None
        return None


Wanted = tuple[str, Any]


def _of_format(format: ResponseFormat | None) -> Wanted | None:
    if format is None or format.type == "text":
        return None
    if format.type == "json_object":
        return ("object", None) if format.schema_ is None else ("schema", format.schema_)
    named = format.json_schema
    schema = format.schema_ if named is None else named.schema_
    if schema is None:
        raise Refusal(
            400,
            "response_format.json_schema.schema is missing: give the schema of the answer",
            param="response_format",
            code="missing_required_parameter",
        )
    return ("lenient schema" if named and named.strict is False else "schema", schema)


def _said(kind: str, value: object) -> Wanted | None:
    return None if value in (None, "") else (kind, value)


def _schema(value: Schema | str | None) -> Wanted | None:
    if isinstance(value, str):
        return ("schema text", value)
    return None if value is None else ("schema", value)


def _grammar(kind: str, value: Any) -> Grammar:
    if kind == "object":
        return any_json_object()
    if kind == "schema text":
        return Grammar("json_schema", value)
    if kind.endswith("schema"):
        return json_schema(value, lenient=kind.startswith("lenient"))
    if kind == "choice":
        return one_of(value)
    return Grammar("regex", value) if kind == "regex" else grammar_text(value)
