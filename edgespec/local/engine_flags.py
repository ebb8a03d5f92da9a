"""The flags of `edgespec serve` that load a pair as another command's flags say."""

import argparse
from pathlib import Path


def engine_flags(arguments: argparse.Namespace) -> tuple[str, ...]:
    """Returns the flags for a new engine to load its pair: what was given of `add_for_engine`."""
    flags = list[str]()
    for name, usual in arguments.for_engine.items():
        flag, value = "--" + name.replace("_", "-"), getattr(arguments, name)
        if value == usual:
            continue
        if value is True:
            flags.append(flag)
        elif isinstance(value, list):
            flags += [word for rule in value for word in (flag, rule)]
        else:
            flags += [flag, str(Path(value).resolve() if name == "chat_template_file" else value)]
    return tuple(flags)
