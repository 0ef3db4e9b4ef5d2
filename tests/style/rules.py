"""House rules that ruff, mypy and import-linter cannot say.

Each rule takes one `Source` and yields findings, `path:line: what is wrong and what to do`. `RULES` are those for
every file; `impure_domain` is for what `domain_sources` selects, and `missing_service_files` for the whole.
"""

import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 70

DOMAIN_NAMES = frozenset({"clear", "domain", "feasible", "place", "price", "explain"})
PURE_STDLIB = frozenset(
    {"__future__", "bisect", "collections", "dataclasses", "enum", "functools"}
    | {"hashlib", "heapq", "itertools", "math", "operator", "typing"}
)
SHELL_NAMES = frozenset({"__main__", "effects", "handlers", "settings"})
IMPURE_METHODS = frozenset({"now", "today", "urandom", "utcnow"})
IMPURE_BUILTINS = frozenset({"__import__", "eval", "exec", "hash", "id", "input", "open", "print"})
SERVICE_FILES = ("__init__", "__main__", "domain", "effects", "handlers", "settings")
CLOCKLESS_TESTS = ("tests/unit/", "tests/contracts/", "tests/simulation/")
CONTROL_PLANE_VERBS = frozenset({"up", "demo", "account", "agent", "audit", "dlq", "views", "simulate"})

_SUBJECT = re.compile(r"(log|logs|cmd|desired|heartbeats|dead|checkpoints)\.(?!(json|jsonl|txt|lock|tmp)$)")
_MACHINE_PATH = re.compile(r"(?<![\w.~/-])/(?:work|root|tmp)/[\w.]")
_UNFINISHED = re.compile(r"\b(?:TO" r"DO|FIX" r"ME)\b")
_BLANKET = re.compile(r"#\s*(?:type:\s*ignore(?!\[)|(?:ruff:\s*)?noqa(?!:\s*[A-Za-z])|mypy:\s*ignore-errors)")
_FOREIGN_TEXTS = frozenset({"LICENSE", "uv.lock"})


@dataclass(frozen=True)
class Source:
    """One text file; `path` is relative to the project, with forward slashes."""

    path: str
    text: str

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """Every node of the syntax tree; none when this is not Python."""
        return tuple(ast.walk(ast.parse(self.text))) if self.path.endswith(".py") else ()

    @property
    def is_shipped(self) -> bool:
        return self.path.startswith(("libs/", "services/"))

    @property
    def is_contract(self) -> bool:
        return self.path.startswith("libs/volt/contracts/")

    @property
    def is_domain(self) -> bool:
        top, _, module, *_ = (*PurePosixPath(self.path).with_suffix("").parts, "", "")
        return top == "services" and module in DOMAIN_NAMES

    def at(self, line: int, what: str) -> str:
        return f"{self.path}:{line}: {what}"


def project_sources(root: Path) -> Iterator[Source]:
    """Every text file that is or could be committed; without git, every one outside dot folders."""
    for path in _project_paths(root):
        try:
            yield Source(path.relative_to(root).as_posix(), path.read_text(encoding="utf-8"))
        except UnicodeDecodeError:
            continue  # A picture or another binary file has no text to judge.


def domain_sources(sources: Iterable[Source]) -> Iterator[Source]:
    """The domain modules of every service, and whatever else of its own package they import."""
    by_path = {source.path: source for source in sources}
    waiting = [source for source in by_path.values() if source.is_domain]
    chosen = {source.path for source in waiting}
    while waiting:
        source = waiting.pop()
        yield source
        for path in _own_files(source):
            if path in by_path and path not in chosen:
                chosen.add(path)
                waiting.append(by_path[path])


def impure_domain(source: Source) -> Iterator[str]:
    """Domain code imports contracts, msgspec and pure stdlib, and calls no clock, chance or I/O."""
    package = PurePosixPath(source.path).parts[1]
    for line, module in _imports(source):
        if not _is_pure(module, package):
            yield source.at(line, f"domain code may not import {module}; let it arrive in a message")
    for node in source.nodes:
        if isinstance(node, ast.Call) and _is_impure(_dotted(node.func)):
            yield source.at(node.lineno, f"domain code may not call {_dotted(node.func)}; let it arrive in a message")
        if isinstance(node, ast.AsyncFunctionDef | ast.Await):
            yield source.at(node.lineno, "domain code is synchronous: move the waiting to effects or handlers")


def too_long(source: Source) -> Iterator[str]:
    """Files and functions fit the head of a reader."""
    lines = source.text.count("\n")
    if source.path.endswith((".py", ".js")) and lines > FILE_LINES_MAX:
        yield source.at(lines, f"{lines} lines; at most {FILE_LINES_MAX}: split it by idea")
    for node in source.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES_MAX:
                yield source.at(node.lineno, f"{node.name} has {length} lines; at most {FUNCTION_LINES_MAX}")


def swallowed_exceptions(source: Source) -> Iterator[str]:
    """Nothing catches every exception and goes on without a word."""
    for node in source.nodes:
        if isinstance(node, ast.ExceptHandler) and _catches_all(node.type) and all(map(_does_nothing, node.body)):
            yield source.at(node.lineno, "swallows every exception: catch the one you expect, and answer it")
        if isinstance(node, ast.Call) and _last(node.func) == "suppress" and any(map(_catches_all, node.args)):
            yield source.at(node.lineno, "suppresses every exception: name the one you expect")


def float_money(source: Source) -> Iterator[str]:
    """No float touches money: not annotated, not divided by `/`, not converted, not multiplied with."""
    for node in source.nodes:
        match node:
            case ast.AnnAssign(target=target, annotation=kind) if _is_money(target) and _has_float(kind):
                yield source.at(node.lineno, f"{ast.unparse(target)} is money: int, never float")
            case ast.arg(arg=name, annotation=kind) if "microusd" in name.lower() and _has_float(kind):
                yield source.at(node.lineno, f"{name} is money: int, never float")
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                if "microusd" in node.name.lower() and _has_float(node.returns):
                    yield source.at(node.lineno, f"{node.name} returns money: int, never float")
            case ast.BinOp(left=a, op=sign, right=b) | ast.AugAssign(target=a, op=sign, value=b):
                if not (_is_money(a) or _is_money(b)) or _is_decimal(a) or _is_decimal(b):
                    continue
                if isinstance(sign, ast.Div):
                    yield source.at(node.lineno, "divides money with /: use // and carry the remainder")
                elif _is_float(a) or _is_float(b):
                    yield source.at(node.lineno, "reckons money with a float: use integers, such as basis points")
            case ast.Call(func=ast.Name(id="float"), args=[value, *_]) if _is_money(value):
                yield source.at(node.lineno, "turns money into a float")


def stray_messages(source: Source) -> Iterator[str]:
    """Messages are defined in contracts and nowhere else."""
    if not source.is_shipped or source.is_contract:
        return
    for node in source.nodes:
        for base in node.bases if isinstance(node, ast.ClassDef) else ():
            root, _, name = _dotted(base).rpartition(".")
            if name in {"Command", "Event", "Value"} and root not in {"asyncio", "click", "threading"}:
                yield source.at(base.lineno, f"a {name} belongs in libs/volt/contracts")


def stray_subjects(source: Source) -> Iterator[str]:
    """Subjects are spelled in contracts and nowhere else; tests and examples may spell them out."""
    if source.is_contract or source.path.startswith(("tests/", "examples/")):
        return
    for node in source.nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _SUBJECT.match(node.value):
            yield source.at(node.lineno, f"spells the subject {node.value!r}: use volt.contracts.subjects")


def machine_paths(source: Source) -> Iterator[str]:
    """No file names a folder of the machine that it was written on."""
    yield from _lines_with(_MACHINE_PATH, source, "names a path of one machine: make it relative or configurable")


def unfinished_marks(source: Source) -> Iterator[str]:
    """What is not done is not in the code."""
    yield from _lines_with(_UNFINISHED, source, "do it now or leave it out")


def blanket_ignores(source: Source) -> Iterator[str]:
    """Every suppression names what it suppresses."""
    for line, comment in _comments(source):
        if _BLANKET.search(comment):
            yield source.at(line, f"{comment!r} hides everything: name the code it is for")


def prints(source: Source) -> Iterator[str]:
    """Only the CLI writes to stdout."""
    if not source.is_shipped or source.path.startswith("libs/volt/cli/"):
        return
    for node in source.nodes:
        if isinstance(node, ast.Call) and _dotted(node.func) == "print":
            yield source.at(node.lineno, "prints: log it, or return it")


def real_sleeps(source: Source) -> Iterator[str]:
    """Fast tests do not wait for real time; `asyncio.sleep(0)` only lets others run."""
    if not source.path.startswith(CLOCKLESS_TESTS):
        return
    for node in source.nodes:
        if not isinstance(node, ast.Call) or _dotted(node.func) not in {"time.sleep", "asyncio.sleep", "sleep"}:
            continue
        yields_only = _dotted(node.func) != "time.sleep" and bool(node.args) and ast.unparse(node.args[0]) == "0"
        if not yields_only:
            yield source.at(node.lineno, "sleeps on real time: step the fake clock instead")


def cli_behind_the_sdk(source: Source) -> Iterator[str]:
    """Buyers' and providers' verbs reach the market through the SDK alone."""
    path = PurePosixPath(source.path)
    if not source.path.startswith("libs/volt/cli/") or CONTROL_PLANE_VERBS.intersection(path.with_suffix("").parts):
        return
    for line, module in _imports(source):
        if module.startswith(("volt.runtime", "volt.embedded")):
            yield source.at(line, f"imports {module}: only {', '.join(sorted(CONTROL_PLANE_VERBS))} may")


def missing_service_files(paths: Iterable[str]) -> Iterator[str]:
    """Know one service, know all: each that can be started has the same files (a large one may be a package)."""
    present = set(paths)
    for main in sorted(path for path in present if re.fullmatch(r"services/\w+/__main__\.py", path)):
        folder = main.removesuffix("/__main__.py")
        for name in SERVICE_FILES:
            if not present.intersection({f"{folder}/{name}.py", f"{folder}/{name}/__init__.py"}):
                yield f"{folder}: has no {name}.py"


RULES: tuple[Callable[[Source], Iterator[str]], ...] = (
    too_long,
    swallowed_exceptions,
    float_money,
    stray_messages,
    stray_subjects,
    machine_paths,
    unfinished_marks,
    blanket_ignores,
    prints,
    real_sleeps,
    cli_behind_the_sdk,
)


def _project_paths(root: Path) -> list[Path]:
    command = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\0")
    except (FileNotFoundError, subprocess.CalledProcessError):
        listed = [path.relative_to(root).as_posix() for path in root.rglob("*")]
        listed = [path for path in listed if not re.search(r"(^|/)(\.(?!ci/)|__pycache__/)", path)]
    return sorted(path for name in listed if name and (path := root / name).is_file())


def _imports(source: Source) -> Iterator[tuple[int, str]]:
    """Line and full name of everything imported; `from package import name` counts as package.name."""
    for node in source.nodes:
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, name.name) for name in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                above = PurePosixPath(source.path).parts[1:-level] if level else ()
                base = ".".join([*above, *([module] if module else [])])
                yield from ((node.lineno, f"{base}.{name.name}") for name in names)


def _own_files(source: Source) -> Iterator[str]:
    """Where the modules may be that a service's module imports from its own package, the shell's left out."""
    package = PurePosixPath(source.path).parts[1]
    for _, module in _imports(source):
        parts = module.split(".")
        if parts[0] == package and len(parts) > 1 and parts[1] not in SHELL_NAMES:
            for depth in range(2, len(parts) + 1):
                stem = "/".join(["services", *parts[:depth]])
                yield from (f"{stem}.py", f"{stem}/__init__.py")


def _is_pure(module: str, package: str) -> bool:
    parts = module.split(".")
    if parts[0] == package:
        return len(parts) > 1 and parts[1] not in SHELL_NAMES
    return parts[0] in PURE_STDLIB | {"msgspec"} or parts[:2] == ["volt", "contracts"]


def _is_impure(called: str) -> bool:
    owner, _, name = called.rpartition(".")
    return name in IMPURE_METHODS if owner else called in IMPURE_BUILTINS


def _dotted(node: ast.AST | None) -> str:
    """`a.b.c` of a name or an attribute; `().c` when the owner is any other expression."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=owner, attr=name):
            return f"{_dotted(owner)}.{name}"
        case _:
            return "()"


def _last(node: ast.AST | None) -> str:
    return _dotted(node).rpartition(".")[2]


def _catches_all(kind: ast.expr | None) -> bool:
    kinds = kind.elts if isinstance(kind, ast.Tuple) else [kind]
    return any(one is None or _last(one) in {"Exception", "BaseException"} for one in kinds)


def _does_nothing(statement: ast.stmt) -> bool:
    is_bare_value = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return is_bare_value or isinstance(statement, ast.Pass | ast.Continue)


def _is_money(node: ast.AST) -> bool:
    """Whether this is, or is reckoned from, something whose name says micro-dollars; text about it is not."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return "microusd" in name.lower()
        case ast.Constant() | ast.JoinedStr() | ast.Compare() | ast.Call(func=ast.Name(id="len")):
            return False
        case _:
            return any(map(_is_money, ast.iter_child_nodes(node)))


def _has_float(annotation: ast.expr | None) -> bool:
    return annotation is not None and bool(re.search(r"\bfloat\b", ast.unparse(annotation)))


def _is_float(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, float)


def _is_decimal(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and _dotted(node.func) in {"Decimal", "Fraction"}


def _lines_with(pattern: re.Pattern[str], source: Source, what: str) -> Iterator[str]:
    if source.path in _FOREIGN_TEXTS:
        return
    for number, line in enumerate(source.text.splitlines(), start=1):
        if pattern.search(line):
            yield source.at(number, what)


def _comments(source: Source) -> Iterator[tuple[int, str]]:
    if not source.path.endswith(".py"):
        return
    for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
