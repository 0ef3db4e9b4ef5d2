"""An extra of the distribution names all that its programs import, so that an image with that extra alone can start."""

import ast
import re
import sys
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tests.containers.deployment import PYPROJECT, ROOT

EXTRAS = {
    main.parent.name: "agent" if main.parent.name == "volt_agent" else "server"
    for main in sorted((ROOT / "services").glob("*/__main__.py"))
}
OWN = {"volt", *EXTRAS}


@pytest.mark.parametrize(("program", "extra"), EXTRAS.items())
def test_a_program_imports_nothing_that_its_extra_does_not_name(program: str, extra: str) -> None:
    project = PYPROJECT.project
    named = {_distribution(text) for text in [*project.dependencies, *project.optional_dependencies[extra]]}
    installed = packages_distributions()
    lacking = {
        module: where for module, where in _imported(program).items() if named.isdisjoint(installed.get(module, []))
    }
    assert lacking == {}


def _imported(program: str) -> dict[str, str]:
    """The packages of others that a program loads, and a module of ours that imports each."""
    waiting, seen, foreign = [f"{program}.__main__"], set[str](), dict[str, str]()
    while waiting:
        module = waiting.pop()
        path = _source(module)
        if path is None or module in seen:
            continue
        seen.add(module)
        for name in _imports(path):
            top = name.partition(".")[0]
            if top in OWN:
                parts = name.split(".")
                waiting += [".".join(parts[:depth]) for depth in range(1, len(parts) + 1)]
            elif top not in sys.stdlib_module_names:
                foreign.setdefault(top, module)
    return foreign


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(module), names=names):
                yield from (f"{module}.{alias.name}" for alias in names)


def _source(module: str) -> Path | None:
    """The file of a module of ours; None for a name in one."""
    stems = [ROOT / top / Path(*module.split(".")) for top in ("libs", "services")]
    paths = [path for stem in stems for path in (stem.with_suffix(".py"), stem / "__init__.py")]
    return next((path for path in paths if path.exists()), None)


def _distribution(requirement: str) -> str:
    (name,) = re.findall(r"^[\w.-]+", requirement)
    return str(name).lower()
