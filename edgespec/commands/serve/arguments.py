"""The flags of `edgespec serve`."""

from __future__ import annotations

import argparse

HELP = "an OpenAI-style endpoint for editors, assistants and programs"
DESCRIPTION = (
    """Answers OpenAI-style requests over HTTP, sooner: at http://HOST:PORT/v1 once the model is loaded."""
)
EPILOG = """A key in the command line can be read by every user of this machine: --api-key-file or
EDGESPEC_API_KEY keep it to yourself. Ctrl+C lets running answers end; a second one does not wait."""


def add(command: argparse.ArgumentParser) -> None:
    """Adds what is about the endpoint; the model's flags are added by the command line."""
    _add_endpoint(command)
    _add_unsaid(command)
    _add_safety(command)


def _add_endpoint(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("endpoint")
    group.add_argument(
        "--config",
        metavar="FILE",
        help="a TOML file with these flags as keys (default: serve.toml in the settings folder, where it is)",
    )
    group.add_argument(
        "--host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="where to listen, as 127.0.0.1,::1 for both kinds of addresses (127.0.0.1)",
    )
    group.add_argument("--port", type=int, default=8080, metavar="N", help="0 takes any free one (8080)")
    group.add_argument("--alias", metavar="NAME", help="what clients see the model called")
    group.add_argument("--slots", type=int, metavar="N", help="answers at the same time (4)")
    group.add_argument(
        "--reproducible",
        action="store_true",
        help="the same request gives the same text, bit for bit, whatever was asked before: one answer at a "
        "time, without drafts, and the end of a prompt is read again each time",
    )
    group.add_argument(
        "--cache-tokens",
        type=int,
        metavar="N",
        help="tokens that all answers may hold together (default: the slots times --ctx)",
    )
    group.add_argument(
        "--cache-ram",
        type=int,
        metavar="MIB",
        help="memory for prompts seen before that are in no slot any more, so that they need not be read "
        "again; 0 is none (default: a quarter of what is free, 8192 at most)",
    )
    group.add_argument("--queue", type=int, default=64, metavar="N", help="requests that may wait (64)")
    group.add_argument(
        "--idle-unload",
        type=float,
        default=0,
        metavar="MINUTES",
        help="unload the model after this long without a request; the next request loads it again (0: never)",
    )
    group.add_argument(
        "--verbose",
        action="store_true",
        help="show in every answer of a chat the prompt that it had (__verbose)",
    )
    group.add_argument(
        "--canary",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="serve this share without speculation, so that /metrics can compare (0)",
    )
    group.add_argument(
        "--log",
        choices=("quiet", "text", "json"),
        default="quiet",
        help="text: a line for each request, too; json: everything as one object a line (quiet)",
    )
    group.add_argument("--owned", action="store_true", help=argparse.SUPPRESS)  # see server/owner.py


def _add_unsaid(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("where a request does not say")
    group.add_argument("-n", type=int, metavar="N", help="longest answer")
    group.add_argument("--temperature", type=float, metavar="T", help="the model's, or 0.8")
    group.add_argument("--seed", type=int, metavar="N", help="anew every time")
    group.add_argument(
        "--reasoning",
        choices=("auto", "on", "off"),
        default="auto",
        help="whether a model that can thinks first (auto: its template's way)",
    )
    group.add_argument(
        "--drafter",
        choices=("auto", "model", "mtp", "eagle", "dflash", "lookup", "none"),
        default="auto",
        help="who guesses (auto)",
    )


def _add_safety(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("safety")
    group.add_argument("--api-key", metavar="KEY", help="ask for this key (or EDGESPEC_API_KEY)")
    group.add_argument("--api-key-file", metavar="FILE", help="a file with keys, one a line")
    group.add_argument(
        "--allowed-host",
        action="append",
        default=[],
        metavar="NAME",
        help="a name that requests may be for, as host.docker.internal; repeatable",
    )
    group.add_argument(
        "--cors-origin",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="web pages that may ask, as http://app.example; localhost is all of this machine's; repeatable",
    )
    group.add_argument("--no-slots", action="store_true", help="do not tell at /slots who is answered")
    group.add_argument("--no-metrics", action="store_true", help="do not tell figures at /metrics")
    group.add_argument("--max-body", type=int, default=32, metavar="MIB", help="largest request (32)")
    group.add_argument(
        "--max-seconds",
        type=float,
        default=3600,
        metavar="S",
        help="longest time for a request, waiting included; then it ends with what there is (3600)",
    )
