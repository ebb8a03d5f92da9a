"""How a chat starts: the settings file under the flags, the saved chats, the first conversation."""

import argparse
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from edgespec.client.answer import AnswerOptions
from edgespec.core.values import DRAFT_LENGTHS
from edgespec.errors import SessionError, SettingError
from edgespec.sampling.settings import NUMBERS, Sampling, logit_bias_of, sampler_order
from edgespec.system import config
from edgespec_tui.sessions.conversation import Conversation
from edgespec_tui.sessions.sessions import Sessions
from edgespec_tui.settings.settings import FILE, AppNames, Settings, read
from edgespec_tui.settings.values import ANSWER
from edgespec_tui.tools.server_list import list_path
from edgespec_tui.tools.server_list import read as read_servers
from edgespec_tui.tools.toolbox import Toolbox


@dataclass(frozen=True, slots=True)
class Beginning:
    """How a chat starts."""

    settings: Settings  # the file's with the flags over them
    options: AnswerOptions
    complaints: tuple[str, ...] = ()  # of the file
    # settings of an answer that flags set; they also apply to a chat that is continued
    explicit: Mapping[str, float] = field(default_factory=dict)
    system: str | None = None


def settings_path() -> Path:
    """Returns the settings file."""
    return config.settings_folder() / FILE


def begin(arguments: argparse.Namespace, *, known: AppNames | None = None) -> Beginning:
    """Returns what flags and settings file ask for. Raises SettingError for a flag that makes no sense."""
    settings, complaints = read(settings_path(), known=known)
    explicit = {name: value for name in ANSWER if (value := getattr(arguments, name)) is not None}
    for name, value in explicit.items():
        ANSWER[name].check("-n" if name == "max_tokens" else name, value)
    sampling = {name: value for name, value in explicit.items() if name in NUMBERS}
    length = arguments.draft_length
    if length is not None:
        DRAFT_LENGTHS.check("the draft length", length)
    if not all(arguments.stop):
        raise SettingError(f"the stop strings are {arguments.stop!r}: none of them may be empty")
    drafter = arguments.drafter if arguments.drafter != "auto" else settings.drafter
    plain = arguments.no_draft or drafter == "none"
    settings = replace(
        settings,
        system=settings.system if arguments.system is None else arguments.system,
        sampling={**settings.sampling, **sampling},
        seed=explicit.get("seed", settings.seed),
        max_tokens=explicit.get("max_tokens", settings.max_tokens),
        speculation=settings.speculation and not plain,
        drafter=drafter,
        draft_length=settings.draft_length if length is None else length,
    )
    options = AnswerOptions(
        stop=tuple(arguments.stop),
        speculation=settings.speculation,
        drafter=None if drafter == "none" else drafter,
        draft_length=settings.draft_length,
        extra=_extra(arguments),
    )
    return Beginning(settings, options, complaints, explicit, arguments.system)


def _extra(arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns the fields of requests that are not numbers (JSON has no infinity); raises SettingError."""
    bias = logit_bias_of(arguments.logit_bias)
    Sampling(logit_bias=bias, dry_sequence_breakers=tuple(arguments.dry_breaker))
    fields = {
        "logit_bias": {str(token): value if value > -math.inf else False for token, value in bias.items()},
        "dry_sequence_breakers": arguments.dry_breaker,
        "samplers": arguments.samplers and list(sampler_order(arguments.samplers)),
    }
    return {name: value for name, value in fields.items() if value}


def open_sessions(arguments: argparse.Namespace, *, on_notice: Callable[[str], None]) -> Sessions:
    """Returns the chats that the flags ask for: those of the data folder, or of this run alone."""
    return Sessions(None if arguments.no_save else config.data_folder(), on_notice=on_notice)


def open_toolbox(arguments: argparse.Namespace, settings: Settings) -> Toolbox:
    """Returns the servers of tools that the flags leave, none of them started. Raises SettingError."""
    servers = read_servers(list_path())
    if arguments.tools is not None:
        wanted = [name.strip() for name in arguments.tools.split(",") if name.strip() not in ("", "none")]
        known = {server.name: server for server in servers}
        if wrong := next((name for name in wanted if name not in known), None):
            there = ", ".join(known) or "none; edgespec mcp add adds one"
            raise SettingError(f"--tools names {wrong!r}: there is no such server, there is {there}")
        servers = tuple(replace(known[name], disabled=False) for name in wanted)
    return Toolbox(servers, call_s=settings.call_s, most_rounds=settings.tool_rounds)


def first_conversation(
    arguments: argparse.Namespace, sessions: Sessions, beginning: Beginning
) -> Conversation:
    """Returns the chat that the flags name, else a new one. Raises SessionError if none has that name."""
    if arguments.resume:
        talk = sessions.named(arguments.resume).result()
    elif arguments.resume is not None:
        found = sessions.newest().result()
        if found is None:
            raise SessionError("there is no chat to continue yet: leave out -c")
        talk = found
    else:
        return beginning.settings.new_conversation()
    if talk.read_only:
        return talk
    if beginning.system is not None:
        talk.system = beginning.system
    for name, value in beginning.explicit.items():
        talk.set(name, value)
    return talk
