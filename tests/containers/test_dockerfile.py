"""deploy/Dockerfile builds any program, from all that its wheel is made of and from nothing else."""

from pathlib import Path

from tests.containers.deployment import DEPLOY, PYPROJECT, ROOT

DOCKERFILE = (DEPLOY / "Dockerfile").read_text()


def test_no_program_is_named_in_it() -> None:
    programs = {path.parent.name for path in (ROOT / "services").glob("*/__init__.py")}
    assert programs
    assert [name for name in programs if name in DOCKERFILE] == []


def test_the_extra_that_it_installs_by_default_exists() -> None:
    (line,) = (line for line in DOCKERFILE.splitlines() if line.startswith("ARG EXTRA="))
    assert line.removeprefix("ARG EXTRA=") in PYPROJECT.project.optional_dependencies


def test_all_that_the_wheel_is_built_from_is_sent_to_the_build_and_nothing_else() -> None:
    first, *let_in = (line for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] not in {"#", ""})
    assert first == "*"
    roots = {Path(line.removeprefix("!")) for line in let_in if line.startswith("!")}
    wheel = PYPROJECT.tool.hatch.build.targets.wheel
    needed = {Path(path) for path in (*wheel.packages, *wheel.force_include)}
    needed |= {Path(name) for name in ("pyproject.toml", "uv.lock", "LICENSE", PYPROJECT.project.readme)}
    assert [path for path in needed if not roots.intersection((path, *path.parents))] == []
    assert [root for root in roots if not any(root in (path, *path.parents) for path in needed)] == []
