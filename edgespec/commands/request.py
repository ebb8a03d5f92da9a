"""A request from a command's flags: sampling, length, who guesses, the form of the answer."""

import argparse

from edgespec.core.request import Request
from edgespec.engine.pair import Pair
from edgespec.errors import SettingError
from edgespec.grammar.grammar import LONGEST_GRAMMAR, Grammar, grammar_text
from edgespec.sampling.settings import NUMBERS, logit_bias_of, sampler_order, sampling_for
from edgespec.system.named_file import read_text


def request_for(arguments: argparse.Namespace, pair: Pair | None = None) -> Request:
    """Builds the request from the flags, over the model's own sampling defaults. Raises SettingError."""
    wanted: dict[str, object] = {name: getattr(arguments, name) for name in NUMBERS}
    wanted["dry_sequence_breakers"] = tuple(arguments.dry_breaker) or None
    wanted["samplers"] = None if arguments.samplers is None else sampler_order(arguments.samplers)
    bias = logit_bias_of(arguments.logit_bias)
    metadata = pair.target.metadata if pair else {}
    if arguments.max_tokens < 1:
        raise SettingError(f"-n is {arguments.max_tokens}: it must be 1 or more")
    return Request(
        sampling=sampling_for(metadata, **wanted, logit_bias=bias or None),
        max_tokens=arguments.max_tokens,
        stop=arguments.stop,
        seed=arguments.seed,
        drafter="none" if arguments.no_draft else arguments.drafter,
        draft_length=arguments.draft_length,
    )


def grammar_for(arguments: argparse.Namespace) -> Grammar | None:
    """Returns the form of the answer, by the flags. Raises SettingError."""
    schema, grammar, regex = (getattr(arguments, name, None) for name in ("json_schema", "grammar", "regex"))
    if schema is not None:
        return Grammar("json_schema", read_text("--json-schema", schema, most=LONGEST_GRAMMAR))
    if grammar is not None:
        return grammar_text(read_text("--grammar", grammar, most=LONGEST_GRAMMAR))
    return None if regex is None else Grammar("regex", regex)
