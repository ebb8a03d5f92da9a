"""Read the standard library of the running Python: its files, functions, classes and documentation.

Everything here is part of CPython and under the PSF licence, version 2. Tests, tables and generated files
are left out. A *group* is trained on or held out as a whole: the top module without its leading
underscore or `_py`, so that `decimal`, `_decimal` and `_pydecimal` never end up on both sides.
"""

import ast
import hashlib
import importlib
import inspect
import sysconfig
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LEFT_OUT = {
    "__pycache__", "test", "tests", "idle_test", "idlelib", "lib2to3", "turtledemo", "ensurepip",
    "site-packages", "dist-packages", "msilib", "pydoc_data", "lib-dynload", "__phello__",
}  # fmt: skip
TABLES = set("html/entities.py antigravity.py this.py sre_constants.py stringprep.py __hello__.py".split())
CODECS_KEPT = set("__init__.py aliases.py idna.py punycode.py utf_8_sig.py utf_16.py rot_13.py".split())
COMPILED = (
    "array atexit binascii builtins bz2 cmath collections contextvars csv datetime decimal errno "
    "faulthandler fcntl functools gc grp hashlib heapq io itertools json lzma marshal math mmap operator "
    "os pickle pwd pyexpat queue random re readline resource select signal socket sqlite3 ssl statistics "
    "struct symtable sys syslog termios threading time tracemalloc types typing unicodedata warnings "
    "weakref zlib zoneinfo asyncio bisect"
).split()
HELD_OUT_SHARE = 24  # one group in 24


@dataclass(frozen=True, slots=True)
class Documented:
    """Describe one function, method, class or module that has documentation or code."""

    name: str  # qualified: "textwrap.TextWrapper.wrap"
    module: str
    kind: str  # "function", "method", "class" or "module"
    signature: str  # "def wrap(self, text):" or "wrap(text)" for compiled ones, "" if unknown
    doc: str  # cleaned, "" if none
    body: str = ""  # code below the docstring, dedented to one level of four blanks
    source: str = ""
    members: tuple[str, ...] = ()

    @property
    def group(self) -> str:
        return group_of(self.module)

    @property
    def short(self) -> str:
        return self.name.rpartition(".")[2]


@dataclass(frozen=True, slots=True)
class SourceFile:
    """Hold one module's text."""

    module: str
    path: str  # relative to the library folder
    text: str


def group_of(module: str) -> str:
    """Return the name under which a module is trained on or held out."""
    top = module.split(".")[0]
    if top in {"os", "distutils", "tkinter", "encodings", "email", "asyncio", "unittest", "multiprocessing"}:
        parts = module.split(".")
        top = ".".join(parts[:2])
    return top.removeprefix("_py").lstrip("_") or "main"


def fraction(text: str) -> float:
    """Map a text to [0, 1), the same on every machine."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big") / 2**48


def is_held_out(group: str) -> bool:
    """Tell whether a group is kept from training. `builtins`, `os` and `sys` always train."""
    if group in {"builtins", "os", "sys", "io", "re", "math", "collections", "typing", "types", "urllib"}:
        return False
    return fraction("held-out 1 " + group) < 1 / HELD_OUT_SHARE


def read_files() -> list[SourceFile]:
    """List the library's modules in a fixed order."""
    root = Path(sysconfig.get_paths()["stdlib"])
    found = []
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if LEFT_OUT & set(relative.parts) or relative.as_posix() in TABLES:
            continue
        if relative.parts[0].startswith(("_sysconfigdata", "config-")):
            continue
        if relative.parts[0] == "encodings" and relative.name not in CODECS_KEPT:
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        module = ".".join(relative.with_suffix("").parts).removesuffix(".__init__")
        if text.strip():
            found.append(SourceFile(module, relative.as_posix(), text))
    return found


def clean_doc(node: ast.AST) -> str:
    """Return a node's docstring without its indentation, or ""."""
    assert isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    doc = ast.get_docstring(node) or ""
    return "\n".join(line.rstrip() for line in doc.expandtabs().splitlines()).strip()


def segment(lines: list[str], first: int, last: int, indent: int) -> str:
    """Return lines first..last (1-based, inclusive) with `indent` leading blanks removed."""
    taken = [line[indent:] if not line[:indent].strip() else line for line in lines[first - 1 : last]]
    return "\n".join(line.rstrip() for line in taken).strip("\n")


def function_item(
    node: ast.FunctionDef | ast.AsyncFunctionDef, lines: list[str], module: str, owner: str
) -> Documented:
    """Split a function into signature, documentation and body."""
    doc = clean_doc(node)
    statements = node.body[1:] if ast.get_docstring(node) is not None else node.body
    indent = node.col_offset
    end = node.end_lineno or node.lineno
    head = segment(lines, node.lineno, max(node.lineno, node.body[0].lineno - 1), indent)
    body = segment(lines, statements[0].lineno, end, indent) if statements else ""
    one_line = node.body[0].lineno == node.lineno
    return Documented(
        name=f"{owner}.{node.name}",
        module=module,
        kind="function" if owner == module else "method",
        signature="" if one_line else head,
        doc=doc,
        body="" if one_line else body,
        source=segment(lines, node.lineno, end, indent),
    )


def items_of(file: SourceFile) -> Iterator[Documented]:
    """Yield a module, its classes, functions and methods."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            tree = ast.parse(file.text)
        except SyntaxError:
            return
    lines = file.text.expandtabs(8).splitlines()
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    public = tuple(
        n.name for n in tree.body if isinstance(n, (*functions, ast.ClassDef)) and n.name[0] != "_"
    )
    yield Documented(file.module, file.module, "module", "", clean_doc(tree), members=public)
    for node in tree.body:
        if isinstance(node, functions):
            yield function_item(node, lines, file.module, file.module)
        elif isinstance(node, ast.ClassDef):
            name = f"{file.module}.{node.name}"
            methods = [n for n in node.body if isinstance(n, functions)]
            head = segment(lines, node.lineno, max(node.lineno, node.body[0].lineno - 1), 0)
            names = tuple(dict.fromkeys(m.name for m in methods if m.name[0] != "_"))
            yield Documented(name, file.module, "class", head, clean_doc(node), members=names)
            for method in methods:
                yield function_item(method, lines, file.module, name)


def compiled_item(name: str, module: str, kind: str, thing: object) -> Iterator[Documented]:
    """Describe a callable written in C by its own documentation, if it has any."""
    doc = getattr(thing, "__doc__", None)
    if not isinstance(doc, str) or not doc.strip() or "built-in" in doc[:12]:
        return
    try:
        parameters = str(inspect.signature(thing))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        parameters = ""
    signature = f"{name.rpartition('.')[2]}{parameters}" if parameters and len(parameters) < 200 else ""
    members = tuple(m for m in vars(thing) if m[0] != "_") if kind == "class" else ()
    yield Documented(name, module, kind, signature, inspect.cleandoc(doc).strip(), members=members)


def compiled_items() -> Iterator[Documented]:
    """Yield what modules written in C document; their Python parts come from the files."""
    for module in COMPILED:
        try:
            loaded = importlib.import_module(module)
        except ImportError:
            continue
        for name, thing in callables(loaded):
            if not isinstance(thing, type):
                if not inspect.isfunction(thing):
                    yield from compiled_item(f"{module}.{name}", module, "function", thing)
            elif not getattr(thing, "__flags__", 0) & 512 and thing.__name__ == name:  # not a heap type
                yield from compiled_item(f"{module}.{name}", module, "class", thing)
                for member, value in callables(thing):
                    yield from compiled_item(f"{module}.{name}.{member}", module, "method", value)


def callables(of: object) -> list[tuple[str, object]]:
    """List the public callables of a module or class, by name."""
    return [(name, value) for name, value in sorted(vars(of).items()) if name[0] != "_" and callable(value)]


def read_items() -> list[Documented]:
    """List every item once, Python's own text before what the compiled modules say."""
    found: dict[str, Documented] = {}
    for file in read_files():
        for item in items_of(file):
            found.setdefault(item.name, item)
    for item in compiled_items():
        found.setdefault(item.name, item)
    return list(found.values())


def read_topics() -> dict[str, str]:
    """Return the language reference as `help()` shows it: topic -> text."""
    topics = importlib.import_module("pydoc_data.topics").topics
    return {name: str(text).strip() for name, text in sorted(topics.items())}
