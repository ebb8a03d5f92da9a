"""The page that a browser shows at the server's address: that it runs, with what, and how to use it.

One page without scripts or anything from elsewhere. It opens without a key, as llama-server's does, so if
keys are required it names no model.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from edgespec import __version__
from edgespec.server.engine_status import State

HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
}
STATES: dict[State, tuple[str, str]] = {
    "ready": ("good", "ready"),
    "unloaded": ("good", "idle: the next request loads the model"),
    "loading": ("wait", "loading the model"),
    "down": ("bad", "the engine is being restarted"),
    "stopped": ("bad", "ending"),
}


@dataclass(frozen=True, slots=True)
class ShownModel:
    """A model in the list."""

    name: str
    status: str  # loaded, unloaded or loading
    about: str  # size, context, draft, in words


def front_page(root: str, state: State, models: Sequence[ShownModel] | None) -> str:
    """Returns the page. root: the address without /v1. models: None if a key is required."""
    kind, status = STATES[state]
    name = models[0].name if models else "MODEL"
    return _PAGE.substitute(
        version=escape(__version__),
        kind=kind,
        status=escape(status),
        models=_models(models),
        setups="".join(_setup(title, text, root, name) for title, text in SETUPS),
    )


def _models(models: Sequence[ShownModel] | None) -> str:
    if models is None:
        return "<p>This server requires a key. Send it as <code>Authorization: Bearer KEY</code>.</p>"
    rows = (
        f"<tr><td><code>{escape(model.name)}</code></td><td>{escape(model.about)}</td>"
        f'<td class="{escape(model.status)}">{escape(model.status)}</td></tr>'
        for model in models
    )
    return f"<table>{''.join(rows)}</table>"


def _setup(title: str, text: str, root: str, name: str) -> str:
    lines = string.Template(text).substitute(root=root, name=name)
    return f"<h3>{escape(title)}</h3><pre>{escape(lines)}</pre>"


SETUPS = (
    ("Chat in the terminal", "edgespec chat --endpoint $root/v1"),
    (
        "curl",
        "curl $root/v1/chat/completions -H 'Content-Type: application/json' \\\n"
        '  -d \'{"messages": [{"role": "user", "content": "Hello"}]}\'',
    ),
    ("Any client of OpenAI's API", "base URL  $root/v1\nmodel     $name\nAPI key   none (any text will do)"),
    ("Any client of Anthropic's API", "export ANTHROPIC_BASE_URL=$root ANTHROPIC_API_KEY=none"),
    (
        "Continue (~/.continue/config.yaml)",
        "models:\n"
        "  - name: EdgeSpec\n"
        "    provider: openai\n"
        "    model: $name\n"
        "    apiBase: $root/v1\n"
        "    apiKey: none\n"
        "    roles: [chat, edit, apply]",
    ),
    (
        "Aider",
        "export OPENAI_API_BASE=$root/v1 OPENAI_API_KEY=none\naider --model openai/$name",
    ),
    ("llama.vim (.vimrc)", "let g:llama_config = { 'endpoint_fim': '$root/infill' }"),
)
_PAGE = string.Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>EdgeSpec</title>
<style>
:root { color-scheme: light dark; --line: #8884; --soft: #8881; --dim: #777;
        --good: #1a7f37; --wait: #9a6700; --bad: #cf222e; }
@media (prefers-color-scheme: dark) {
  :root { --dim: #999; --good: #3fb950; --wait: #d29922; --bad: #f85149; }
}
body { font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 3rem auto; padding: 0 1.25rem; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.1rem; margin: 2.5rem 0 .5rem; }
h3 { font-size: .9rem; font-weight: 600; margin: 1.25rem 0 .25rem; color: var(--dim); }
.version { color: var(--dim); font-weight: 400; }
.status::before { content: "\\25cf\\a0"; } .good { color: var(--good); } .wait { color: var(--wait); }
.bad { color: var(--bad); } .loaded { color: var(--good); } .loading { color: var(--wait); }
.unloaded { color: var(--dim); }
code, pre { font: .85rem/1.5 ui-monospace, "DejaVu Sans Mono", monospace; }
pre { background: var(--soft); border: 1px solid var(--line); border-radius: 6px; margin: 0;
      padding: .6rem .8rem; overflow-x: auto; }
table { border-collapse: collapse; width: 100%; } td { padding: .35rem .75rem .35rem 0;
        border-bottom: 1px solid var(--line); vertical-align: top; } td:last-child { text-align: right; }
td code { overflow-wrap: anywhere; }
</style>
</head>
<body>
<h1>EdgeSpec <span class="version">$version</span></h1>
<p class="status $kind">$status</p>
<h2>Models</h2>
$models
<h2>Use it</h2>
$setups
</body>
</html>
""")
