"""The flags of `edgespec serve`, by group."""

import argparse

from edgespec.commands import flags
from edgespec.commands.flag_table import add_flags
from edgespec.commands.serve.listening import OLLAMA
from edgespec.core.values import DRAFTERS

ENDPOINT = {
    "--config FILE": "a TOML file with these flags as keys (default: serve.toml in the settings folder, if "
    "it exists)",
    "--host ADDRESS 127.0.0.1": "address to listen on; 127.0.0.1,::1 takes IPv4 and IPv6 (127.0.0.1)",
    "--port N 8080": "port; 0 picks a free one (8080)",
    "--ollama": f"also listen on 127.0.0.1:{OLLAMA}, where many programs look for Ollama",
    "--embed FILE": "GGUF file of an embedding model, for /v1/embeddings",
    "--rerank FILE": "GGUF file of a reranker, for /v1/rerank",
    "--alias NAME": "the model's name, as clients see it",
    "--verbose": "add the prompt to every chat answer, as __verbose",
    "--canary SHARE 0": "answer this share of requests without speculation, so that /metrics can compare (0)",
    "--log quiet|text|json": "text: also a line per request; json: everything, as one object per line "
    "(quiet)",
    "--owned": argparse.SUPPRESS,  # see server/announcing.py
}
ENGINE = {
    "--slots N": "requests answered at the same time (4)",
    "--reproducible": "the same request always gives the same text, bit for bit: one answer at a time, "
    "without drafts, and with the end of each prompt read again",
    "--cache-tokens N": "tokens that all requests together may hold in the KV cache (default: --slots times "
    "--ctx)",
    "--cache-ram MIB": "host memory for earlier prompts that have left their slot, so that they need not be "
    "read again; 0: none (default: a quarter of free memory, at most 8192)",
    "--cache-disk GIB 0": "disk space for earlier prompts, so that they need not be read again after a "
    "restart; they are in the cache folder, readable by you alone (0: none)",
    "--slot-save-path FOLDER": "let clients save what slots hold to files in this folder, and restore it, as "
    "llama-server does",
}
LIMITS = {
    "--models-max N 4": "models in memory at the same time, if they fit; the least recently used make room "
    "(4)",
    "--queue N 64": "longest queue of waiting requests (64)",
    "--idle-unload MINUTES 0": "unload a model after this long without a request; the next request reloads "
    "it (0: never)",
}
DEFAULTS = {
    "-n N": "longest answer, in tokens",
    "--temperature T": "(default: what the model file recommends, else 0.8)",
    "--seed N": "(default: a new one for each request)",
    "--no-strict-calls": "let models write calls as they like, instead of keeping them to the tools "
    "that were offered and to their schemas",
    "--reasoning auto|on|off": "whether a reasoning model thinks first (auto: as its chat template does)",
    f"--drafter {'|'.join(DRAFTERS)} auto": "what makes the guesses (auto)",
}
SAFETY = {
    "--api-key KEY": "require this key (or EDGESPEC_API_KEY)",
    "--api-key-file FILE": "a file of accepted keys, one per line",
    "--allowed-host NAME *": "another host name that clients may use for this server, such as "
    "host.docker.internal; repeatable",
    "--media-url-hosts NAMES": "hosts from which pictures are fetched that clients name by http(s) "
    "addresses, with commas between; never from addresses of this machine or its network (none)",
    "--cors-origin ORIGIN *": "web pages that may use the server, such as http://app.example; localhost "
    "allows all on this machine, programs those of installed programs such as Obsidian, none no page; "
    "repeatable (default: localhost, or all pages where a key is required)",
    "--no-normalize": "leave lines in system prompts that clients are known to change with every request "
    "(otherwise left out or moved to the end, so that the prompt is found in the cache)",
    "--share-lookup": "let guesses for one API key come from texts of another: how many are accepted then "
    "shows whether something was written before",
    "--no-slots": "close /slots, which shows the requests being answered",
    "--no-metrics": "close /metrics",
    "--max-body MIB 32": "largest request body (32)",
    "--max-seconds S 3600": "longest time for a request, including its wait; then the answer ends where it "
    "is (3600)",
}


def add_all(command: argparse.ArgumentParser) -> None:
    """Adds all flags of the endpoint, and those of the model."""
    add_flags(command.add_argument_group("endpoint"), ENDPOINT)
    engine = command.add_argument_group("engine")
    add_flags(engine, ENGINE)
    flags.add_keep_texts(engine)
    add_flags(engine, LIMITS)
    add_flags(command.add_argument_group("defaults for requests"), DEFAULTS)
    add_flags(command.add_argument_group("safety"), SAFETY)
    flags.add_model(command, pair_flag=False, media=True)
    flags.add_template(command)
