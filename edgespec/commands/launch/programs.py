"""What each program needs so that a pair of this machine answers it: a row for each, with what was tried.

Addresses go in by environment, by flags, or in a file of ours that the program reads besides its own: a
user's file is never written. Where a program has no such way, what to add to its settings is shown.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

KEY = "EDGESPEC_API_KEY"


@dataclass(frozen=True, slots=True)
class Place:
    """Where the pair answers, and as what."""

    root: str  # http://HOST:PORT
    key: str
    model: str
    n_ctx: int  # tokens of a request, answer included
    folder: str  # of ours, for this program's files

    @property
    def v1(self) -> str:
        return f"{self.root}/v1"

    @property
    def longest(self) -> int:
        """Tokens that are left for an answer where a program has to know."""
        return min(8192, self.n_ctx // 4)


@dataclass(frozen=True, slots=True)
class Setup:
    """What is set for one run."""

    environment: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()  # before the user's own
    files: Mapping[str, str] = field(default_factory=dict)  # name in the folder -> text
    show: str = ""  # what to add to the program's settings by hand; then it is not started


@dataclass(frozen=True, slots=True)
class Program:
    """A program that agents run in."""

    executable: str
    install: str  # the one command that installs it
    tried: str  # the version this row was tried with; "" for one that follows its documentation
    n_ctx: int  # tokens of context below which it does nothing useful
    setup: Callable[[Place], Setup]


def _claude(at: Place) -> Setup:
    models = ("MODEL", *(f"DEFAULT_{tier}_MODEL" for tier in ("OPUS", "SONNET", "HAIKU")), "SMALL_FAST_MODEL")
    return Setup(
        {
            "ANTHROPIC_BASE_URL": at.root,
            "ANTHROPIC_AUTH_TOKEN": at.key,
            "ANTHROPIC_API_KEY": "",
            **{f"ANTHROPIC_{name}": at.model for name in models},
            "CLAUDE_CODE_SUBAGENT_MODEL": at.model,
            "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(at.longest),
            "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",  # differs from request to request, at the very beginning
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        }
    )


def _codex(at: Place) -> Setup:
    table = f'{{name="EdgeSpec", base_url="{at.v1}", wire_api="responses", env_key="{KEY}"}}'
    settings = {
        "model": json.dumps(at.model),
        "model_provider": '"edgespec"',
        "model_providers.edgespec": table,
        "model_context_window": str(at.n_ctx),
        "analytics.enabled": "false",
    }
    flags = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
    return Setup({KEY: at.key}, tuple(flags))


def _opencode(at: Place) -> Setup:
    name = f"edgespec/{at.model}"
    limits = {"context": at.n_ctx, "output": at.longest}
    settings: dict[str, Any] = {
        "$schema": "https://opencode.ai/config.json",
        "provider": {
            "edgespec": {
                "npm": "@ai-sdk/openai-compatible",
                "name": "EdgeSpec",
                "options": {"baseURL": at.v1, "apiKey": f"{{env:{KEY}}}"},
                "models": {at.model: {"name": at.model, "limit": limits, "tool_call": True}},
            }
        },
        "model": name,
        "small_model": name,
        "autoupdate": False,
        "share": "disabled",
    }
    return Setup(
        {
            KEY: at.key,
            "OPENCODE_CONFIG_CONTENT": json.dumps(settings),
            "OPENCODE_DISABLE_MODELS_FETCH": "1",  # a list of everybody else's models
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
        }
    )


def _aider(at: Place) -> Setup:
    name = f"openai/{at.model}"
    sizes = {"max_input_tokens": at.n_ctx, "max_output_tokens": at.longest, "litellm_provider": "openai"}
    return Setup(
        {"OPENAI_API_BASE": at.v1, "OPENAI_API_KEY": at.key},
        (
            *("--model", name, "--weak-model", name, "--model-metadata-file", f"{at.folder}/models.json"),
            *("--no-check-update", "--no-analytics", "--no-show-model-warnings"),
        ),
        {"models.json": json.dumps({name: {**sizes, "mode": "chat"}})},
    )


def _crush(at: Place) -> Setup:
    model = {
        "id": at.model,
        "name": at.model,
        "context_window": at.n_ctx,
        "default_max_tokens": at.longest,
    }
    chosen = {"provider": "edgespec", "model": at.model}
    settings = {
        "providers": {
            "edgespec": {
                "type": "openai-compat",
                "name": "EdgeSpec",
                "base_url": at.v1,
                "api_key": f"${KEY}",
                "models": [model],
            }
        },
        "models": {"large": chosen, "small": chosen},
        "options": {"disable_metrics": True, "disable_provider_auto_update": True},
    }
    return Setup(
        {KEY: at.key, "CRUSH_GLOBAL_CONFIG": at.folder}, files={"crush.json": json.dumps(settings, indent=2)}
    )


def _goose(at: Place) -> Setup:
    return Setup(
        {
            "GOOSE_PROVIDER": "openai",
            "GOOSE_MODEL": at.model,
            "GOOSE_CONTEXT_LIMIT": str(at.n_ctx),
            "OPENAI_HOST": at.root,
            "OPENAI_BASE_PATH": "v1/chat/completions",
            "OPENAI_API_KEY": at.key,
        }
    )


def _qwen(at: Place) -> Setup:
    return Setup(
        {"OPENAI_BASE_URL": at.v1, "OPENAI_API_KEY": at.key, "OPENAI_MODEL": at.model},
        ("--auth-type", "openai", "--model", at.model),
    )


def _zed(at: Place) -> Setup:
    model = {"name": at.model, "max_tokens": at.n_ctx, "max_output_tokens": at.longest}
    provider = {"EdgeSpec": {"api_url": at.v1, "available_models": [model]}}
    settings = {
        "language_models": {"openai_compatible": provider},
        "agent": {"default_model": {"provider": "EdgeSpec", "model": at.model}},
    }
    key = f"Its API key, which Zed asks for: {at.key or 'none'}"
    return Setup(show=f"In Zed's settings.json:\n{json.dumps(settings, indent=2)}\n\n{key}")


def _vscode(at: Place) -> Setup:
    continue_ = f"""name: EdgeSpec
version: 1.0.0
schema: v1
models:
  - name: EdgeSpec
    provider: openai
    model: {json.dumps(at.model)}
    apiBase: {at.v1}
    apiKey: {json.dumps(at.key or "none")}
    roles: [chat, edit, apply]
    capabilities: [tool_use]
    defaultCompletionOptions: {{contextLength: {at.n_ctx}, maxTokens: {at.longest}}}"""
    key = at.key or "none"
    cline = (
        f'Cline, in its settings: API Provider "OpenAI Compatible", Base URL {at.v1}, API Key {key}, '
        f"Model ID {at.model}, context window {at.n_ctx}."
    )
    return Setup(show=f"Continue, in ~/.continue/config.yaml:\n{continue_}\n\n{cline}")


NPM = "npm install -g"
PROGRAMS: dict[str, Program] = {
    "claude": Program("claude", f"{NPM} @anthropic-ai/claude-code", "", 24_576, _claude),
    "codex": Program("codex", f"{NPM} @openai/codex", "0.169.0", 16_384, _codex),
    "opencode": Program("opencode", f"{NPM} opencode-ai", "1.18.33", 16_384, _opencode),
    "aider": Program("aider", "python -m pip install aider-chat", "0.86.2", 8_192, _aider),
    "crush": Program("crush", f"{NPM} @charmland/crush", "", 16_384, _crush),
    "goose": Program(
        "goose", "see https://github.com/aaif-goose/goose for its installer", "", 16_384, _goose
    ),
    "qwen-code": Program("qwen", f"{NPM} @qwen-code/qwen-code", "0.15.10", 16_384, _qwen),
    "zed": Program("zed", "see https://zed.dev/download", "", 16_384, _zed),
    "vscode": Program("code", "see https://code.visualstudio.com/download", "", 16_384, _vscode),
}
