"""The flags of `edgespec serve`, by group, and the settings that they make."""

import argparse
import os
from dataclasses import replace
from pathlib import Path

from edgespec.commands import flags, loading
from edgespec.commands.flag_table import add_flags
from edgespec.commands.serve.listening import OLLAMA, addresses
from edgespec.core.values import DRAFTERS, DrafterName
from edgespec.errors import EdgeSpecError, ModelFileError, ModelUnsupportedError, SettingError
from edgespec.pairs.files import chat_template, pair_files
from edgespec.protocol.messages import LoadRequest
from edgespec.sampling.settings import IN_FILE, Sampling
from edgespec.server.settings import PROGRAMS, RequestDefaults, ServerSettings
from edgespec.system.named_file import read_text
from edgespec_models.gguf.header import HeaderError, read_file

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
# what needs no restart; the rest belongs to the engine, its caches, or the sockets
LIVE = frozenset(
    {"api_key", "api_key_file", "allowed_host", "cors_origin", "canary", "verbose", "no_metrics", "max_body"}
    | {"max_seconds", "n", "temperature", "seed", "reasoning", "drafter", "idle_unload", "slot_save_path"}
    | {"media_url_hosts", "no_normalize"}
)
RANK = 4  # the pooling of a reranker, in its file
LONGEST_KEYS = 2**16  # characters of a file of keys


def add_all(command: argparse.ArgumentParser) -> None:
    """Adds all flags of the endpoint, and those of the model."""
    add_flags(command.add_argument_group("endpoint"), ENDPOINT)
    engine = command.add_argument_group("engine")
    add_flags(engine, ENGINE)
    loading.add_keep_texts(engine)
    add_flags(engine, LIMITS)
    add_flags(command.add_argument_group("defaults for requests"), DEFAULTS)
    add_flags(command.add_argument_group("safety"), SAFETY)
    flags.add_model(command, pair_flag=False, media=True)
    flags.add_template(command)


def server_settings(arguments: argparse.Namespace) -> ServerSettings:
    """Returns the web process's settings; raises SettingError."""
    for flag, value, low, high in (
        ("--port", arguments.port, 0, 65535),
        ("--slots", arguments.slots, 1, 32),
        ("--queue", arguments.queue, 0, 100_000),
        ("--models-max", arguments.models_max, 1, 100),
        ("--cache-ram", arguments.cache_ram or 0, 0, 2**24),
        ("--cache-disk", arguments.cache_disk, 0, 2**20),
        ("--keep-texts", arguments.keep_texts, 0, 2**20),
        ("--max-body", arguments.max_body, 1, 4096),
        ("--max-seconds", arguments.max_seconds, 1, 10**7),
        ("--canary", arguments.canary, 0, 1),
        ("--idle-unload", arguments.idle_unload, 0, 10**6),
    ):
        if not low <= value <= high:
            raise SettingError(f"{flag} is {value}: it must be from {low} to {high}")
    return ServerSettings(
        alias=arguments.alias,
        keys=_keys(arguments),
        chat_template=chat_template(arguments),
        embed=pooling_model(arguments.embed, "--embed") if arguments.embed else None,
        rerank=pooling_model(arguments.rerank, "--rerank") if arguments.rerank else None,
        hosts=frozenset([*arguments.allowed_host, *addresses(arguments.host)]),
        media_hosts=frozenset(
            filter(None, map(str.strip, (arguments.media_url_hosts or "").lower().split(",")))
        ),
        origins=tuple(origin.rstrip("/") for origin in arguments.cors_origin + [PROGRAMS] * arguments.ollama),
        max_body=arguments.max_body * 2**20,
        request_s=arguments.max_seconds,
        canary=arguments.canary,
        defaults=_defaults(arguments),
        share_lookup=arguments.share_lookup,
        strict_calls=not arguments.no_strict_calls,
        normalize=not arguments.no_normalize,
        verbose=arguments.verbose,
        slot_folder=_slot_folder(arguments.slot_save_path) if arguments.slot_save_path else None,
        no_slots=arguments.no_slots,
        no_metrics=arguments.no_metrics,
        log=arguments.log,
        idle_s=arguments.idle_unload * 60 or None,
        models_max=arguments.models_max,
    )


def _slot_folder(name: str) -> Path:
    """Returns where slots' texts may be saved. Raises SettingError."""
    path = Path(name).resolve()
    if not path.is_dir():
        raise SettingError(f"--slot-save-path {name} is no folder: make it, or name another")
    return path


def pooling_model(name: str, flag: str) -> Path:
    """Returns the file of an embedding model or a reranker. Raises ModelFileError, ModelUnsupportedError."""
    path = Path(name).absolute()  # not resolved: in the hub's cache, the link has the name
    try:
        header = read_file(path)
    except HeaderError as error:
        raise ModelFileError(f"{flag}: {error}") from None
    pooling = header.of_architecture("pooling_type")
    ranks = pooling == RANK and any(tensor.name.startswith("cls") for tensor in header.tensors)
    if flag == "--rerank" and not ranks:
        raise ModelUnsupportedError(f"{flag}: {path.name} is no reranker: its file has no pooling by rank")
    if flag == "--embed" and pooling in (None, 0, RANK):
        raise ModelUnsupportedError(f"{flag}: {path.name} is no embedding model: its file names no pooling")
    return path


def _defaults(arguments: argparse.Namespace) -> RequestDefaults:
    """Returns the defaults of requests; raises SettingError."""
    longest = None if arguments.n == -1 else arguments.n  # llama.cpp's way to write "what fits"
    if longest is not None and not 1 <= longest <= 2**31 - 1:
        raise SettingError(f"-n is {longest}: it must be 1 or more, or -1 for what fits")
    if arguments.seed is not None and not -(2**63) <= arguments.seed < 2**64:
        raise SettingError(f"--seed is {arguments.seed}: it must have 64 bits at most")
    sampling = {}
    if arguments.temperature is not None:
        Sampling(temperature=arguments.temperature)
        sampling[IN_FILE + "temp"] = str(arguments.temperature)
    # byte-identical pairs may guess, and reuse prompts
    restricted: bool = arguments.reproducible and not arguments.byte_identical
    if restricted and (arguments.slots > 1 or arguments.drafter != "auto"):
        flag = f"--slots {arguments.slots}" if arguments.slots > 1 else f"--drafter {arguments.drafter}"
        raise SettingError(f"--reproducible answers one at a time and without drafts: leave out {flag}")
    plain = arguments.no_draft or restricted
    drafter: DrafterName = "none" if plain else arguments.drafter
    thinking = {"auto": None, "on": True, "off": False}[arguments.reasoning]
    return RequestDefaults(sampling, arguments.seed, longest, drafter, thinking, fresh=restricted)


def _keys(arguments: argparse.Namespace) -> tuple[str, ...]:
    """Returns the keys that open; raises SettingError if a file of keys has none."""
    given = [arguments.api_key, os.environ.get("EDGESPEC_API_KEY") or None]
    for name, key in zip(("--api-key", "EDGESPEC_API_KEY"), given, strict=True):
        if key is not None and not key.strip():
            raise SettingError(f"{name} is empty: give a key, or leave it out")
    if arguments.api_key_file:
        lines = read_text("--api-key-file", arguments.api_key_file, most=LONGEST_KEYS).splitlines()
        keys = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
        if not keys:
            raise SettingError(f"--api-key-file {arguments.api_key_file} holds no key: write one into it")
        given += keys
    found = tuple(key.strip() for key in given if key)  # as clients' keys are read
    if not all(key.isascii() and key.isprintable() for key in found):
        raise SettingError("an API key has characters that HTTP cannot carry: use letters, digits and signs")
    return found


def load_request(arguments: argparse.Namespace) -> LoadRequest:
    """Returns what the worker loads; raises SettingError or an error of the files."""
    target, draft = pair_files(arguments)
    for file in filter(None, (target, draft)):
        if not file.exists():
            raise EdgeSpecError(f"there is no file {file}: check the path")
    return LoadRequest(
        target=str(target),
        draft=str(draft) if draft else None,
        settings=replace(
            loading.pair_settings(arguments),
            slots=arguments.slots,
            cache_tokens=arguments.cache_tokens,
            cache_ram=None if arguments.cache_ram is None else arguments.cache_ram * 2**20,
            cache_disk=arguments.cache_disk * 2**30,
            keep_texts=arguments.keep_texts * 2**20,
        ),
        queue=arguments.queue,
    )
