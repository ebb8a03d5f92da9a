"""The form of an answer, in the fields of OpenAI, llama.cpp and vLLM."""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field, StrictBool, StrictStr

from edgespec.errors import GrammarError
from edgespec.grammar.grammar import NOT_ENFORCED, Grammar, any_json_object, grammar_text, json_schema, one_of
from edgespec.server.refusal import Refusal, invalid, missing
from edgespec.server.requests.fields import Fields

Schema = dict[str, Any] | bool
Choices = Annotated[list[StrictStr], Field(min_length=1, max_length=1000)]


class NamedSchema(Fields):
    """OpenAI's `json_schema` object. strict false: what cannot be enforced is ignored."""

    name: StrictStr | None = None
    description: StrictStr | None = None
    schema_: Annotated[Schema | None, Field(alias="schema")] = None
    strict: StrictBool | None = None


class ResponseFormat(Fields):
    """OpenAI's `response_format`; `schema` next to `json_object` is llama.cpp's."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None
    schema_: Annotated[Schema | None, Field(alias="schema")] = None


class StructuredOutputs(Fields):
    """vLLM's `structured_outputs` (the old `guided_*` fields mean the same)."""

    json_: Annotated[Schema | StrictStr | None, Field(alias="json")] = None
    regex: StrictStr | None = None
    choice: Choices | None = None
    grammar: StrictStr | None = None
    json_object: StrictBool | None = None


class FormFields(Fields):
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
            "json_schema": any_json_object if self.json_schema == {} else _schema(self.json_schema),
            "grammar": _made_by(grammar_text, self.grammar),
            "regex": _made_by(_of_regex, self.regex),
            "structured_outputs.json": _schema(outputs.json_),
            "structured_outputs.regex": _made_by(_of_regex, outputs.regex),
            "structured_outputs.choice": _made_by(one_of, outputs.choice),
            "structured_outputs.grammar": _made_by(grammar_text, outputs.grammar),
            "structured_outputs.json_object": any_json_object if outputs.json_object else None,
            "guided_json": _schema(self.guided_json),
            "guided_regex": _made_by(_of_regex, self.guided_regex),
            "guided_choice": _made_by(one_of, self.guided_choice),
            "guided_grammar": _made_by(grammar_text, self.guided_grammar),
        }
        given = {name: how for name, how in wanted.items() if how}
        if len(given) > 1:
            sentence = f"{' and '.join(given)} are both given, but an answer has one form: leave one out"
            raise invalid(list(given)[1].partition(".")[0], sentence)
        for name, make in given.items():
            param = name.partition(".")[0]
            try:
                return make()
            except GrammarError as error:
                raise invalid(param, f"{param}: {error}") from None
        return None

    def advised(self, refusal: Refusal) -> Refusal:
        """Returns a refusal of a form with what else can be done, if this request has a field for it."""
        named = self.response_format and self.response_format.json_schema
        if named and refusal.message.endswith(NOT_ENFORCED):
            refusal.message += ', or ignore it with "strict": false'
        return refusal


Make = Callable[[], Grammar]  # raises GrammarError
_of_regex = partial(Grammar, "regex")


def _of_format(format: ResponseFormat | None) -> Make | None:
    if format is None or format.type == "text":
        return None
    if format.type == "json_object":
        return _schema(format.schema_) or any_json_object
    named = format.json_schema
    schema = format.schema_ if named is None else named.schema_
    if schema is None:
        sentence = "response_format.json_schema.schema is missing: give the schema of the answer"
        raise missing("response_format", sentence)
    return partial(json_schema, schema, lenient=named is not None and named.strict is False)


def _made_by(make: Callable[[Any], Grammar], value: object) -> Make | None:
    return None if value in (None, "") else partial(make, value)


def _schema(value: Schema | str | None) -> Make | None:
    if isinstance(value, str):
        return partial(Grammar, "json_schema", value)
    return None if value is None else partial(json_schema, value)
