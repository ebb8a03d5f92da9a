"""The flags of `edgespec serve`, by group."""

import argparse

from edgespec.commands import flags
from edgespec.commands.serve.listening import OLLAMA
from edgespec.core.values import DRAFTERS


def add_endpoint(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("endpoint")
    group.add_argument(
        "--config",
        metavar="FILE",
        help="a TOML file with these flags as keys (default: serve.toml in the settings folder, if it "
        "exists)",
    )
    group.add_argument(
        "--host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="address to listen on; 127.0.0.1,::1 takes IPv4 and IPv6 (127.0.0.1)",
    )
    group.add_argument("--port", type=int, default=8080, metavar="N", help="port; 0 picks a free one (8080)")
    group.add_argument(
        "--ollama",
        action="store_true",
        help=f"also listen on 127.0.0.1:{OLLAMA}, where many programs look for Ollama",
    )
    group.add_argument("--embed", metavar="FILE", help="GGUF file of an embedding model, for /v1/embeddings")
    group.add_argument("--rerank", metavar="FILE", help="GGUF file of a reranker, for /v1/rerank")
    group.add_argument("--alias", metavar="NAME", help="the model's name, as clients see it")
    group.add_argument(
        "--verbose",
        action="store_true",
        help="add the prompt to every chat answer, as __verbose",
    )
    group.add_argument(
        "--canary",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="answer this share of requests without speculation, so that /metrics can compare (0)",
    )
    group.add_argument(
        "--log",
        choices=("quiet", "text", "json"),
        default="quiet",
        help="text: also a line per request; json: everything, as one object per line (quiet)",
    )
    group.add_argument("--owned", action="store_true", help=argparse.SUPPRESS)  # see server/parent_process.py


def add_engine(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("engine")
    group.add_argument("--slots", type=int, metavar="N", help="requests answered at the same time (4)")
    group.add_argument(
        "--reproducible",
        action="store_true",
        help="the same request always gives the same text, bit for bit: one answer at a time, without "
        "drafts, and with the end of each prompt read again",
    )
    group.add_argument(
        "--cache-tokens",
        type=int,
        metavar="N",
        help="tokens that all requests together may hold in the KV cache (default: --slots times --ctx)",
    )
    group.add_argument(
        "--cache-ram",
        type=int,
        metavar="MIB",
        help="host memory for earlier prompts that have left their slot, so that they need not be read "
        "again; 0: none (default: a quarter of free memory, at most 8192)",
    )
    group.add_argument(
        "--cache-disk",
        type=int,
        default=0,
        metavar="GIB",
        help="disk space for earlier prompts, so that they need not be read again after a restart; they are "
        "in the cache folder, readable by you alone (0: none)",
    )
    group.add_argument(
        "--slot-save-path",
        metavar="FOLDER",
        help="let clients save what slots hold to files in this folder, and restore it, as llama-server does",
    )
    flags.add_keep_texts(group)
    group.add_argument(
        "--models-max",
        type=int,
        default=4,
        metavar="N",
        help="models in memory at the same time, if they fit; the least recently used make room (4)",
    )
    group.add_argument(
        "--queue", type=int, default=64, metavar="N", help="longest queue of waiting requests (64)"
    )
    group.add_argument(
        "--idle-unload",
        type=float,
        default=0,
        metavar="MINUTES",
        help="unload a model after this long without a request; the next request reloads it (0: never)",
    )


def add_defaults(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("defaults for requests")
    group.add_argument("-n", type=int, metavar="N", help="longest answer, in tokens")
    group.add_argument(
        "--temperature", type=float, metavar="T", help="(default: what the model file recommends, else 0.8)"
    )
    group.add_argument("--seed", type=int, metavar="N", help="(default: a new one for each request)")
    group.add_argument(
        "--reasoning",
        choices=("auto", "on", "off"),
        default="auto",
        help="whether a reasoning model thinks first (auto: as its chat template does)",
    )
    group.add_argument(
        "--drafter",
        choices=DRAFTERS,
        default="auto",
        help="what makes the guesses (auto)",
    )


def add_safety(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("safety")
    group.add_argument("--api-key", metavar="KEY", help="require this key (or EDGESPEC_API_KEY)")
    group.add_argument("--api-key-file", metavar="FILE", help="a file of accepted keys, one per line")
    group.add_argument(
        "--allowed-host",
        action="append",
        default=[],
        metavar="NAME",
        help="another host name that clients may use for this server, such as host.docker.internal; "
        "repeatable",
    )
    group.add_argument(
        "--media-url-hosts",
        default="",
        metavar="NAMES",
        help="hosts from which pictures are fetched that clients name by http(s) addresses, with commas "
        "between; never from addresses of this machine or its network (none)",
    )
    group.add_argument(
        "--cors-origin",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="web pages that may use the server, such as http://app.example; localhost allows all on this "
        "machine, programs those of installed programs such as Obsidian, none no page; repeatable (default: "
        "localhost, or all pages where a key is required)",
    )
    group.add_argument(
        "--no-slots", action="store_true", help="close /slots, which shows the requests being answered"
    )
    group.add_argument("--no-metrics", action="store_true", help="close /metrics")
    group.add_argument("--max-body", type=int, default=32, metavar="MIB", help="largest request body (32)")
    group.add_argument(
        "--max-seconds",
        type=float,
        default=3600,
        metavar="S",
        help="longest time for a request, including its wait; then the answer ends where it is (3600)",
    )
