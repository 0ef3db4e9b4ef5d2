"""What deploy/, pyproject.toml and uv.lock say, read into types."""

from pathlib import Path

import msgspec

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"


class Build(msgspec.Struct, frozen=True):
    """How compose makes an image."""

    context: str
    dockerfile: str
    args: dict[str, str]


class ComposeService(msgspec.Struct, frozen=True):
    """One container of the stack; an image that is not built here is some other project's."""

    image: str
    restart: str
    networks: list[str]
    read_only: bool
    cap_drop: list[str]
    build: Build | None = None
    command: list[str] = []
    environment: dict[str, str] = {}
    ports: list[str] = []
    volumes: list[str] = []
    depends_on: dict[str, dict[str, str]] = {}
    healthcheck: dict[str, object] = {}


class Compose(msgspec.Struct, frozen=True):
    """The part of deploy/compose.yaml that tests ask about."""

    services: dict[str, ComposeService]
    networks: dict[str, dict[str, bool]]
    volumes: dict[str, dict[str, str]]

    @property
    def built(self) -> dict[str, Build]:
        """The programs of this project, by the name of their container."""
        return {name: service.build for name, service in self.services.items() if service.build is not None}


class _Package(msgspec.Struct, frozen=True):
    name: str
    version: str = ""


class _Lock(msgspec.Struct, frozen=True):
    package: list[_Package]


class _Wheel(msgspec.Struct, frozen=True, rename="kebab"):
    packages: list[str]
    force_include: dict[str, str]


class _Targets(msgspec.Struct, frozen=True):
    wheel: _Wheel


class _Build(msgspec.Struct, frozen=True):
    targets: _Targets


class _Hatch(msgspec.Struct, frozen=True):
    build: _Build


class _Tool(msgspec.Struct, frozen=True):
    hatch: _Hatch


class _Project(msgspec.Struct, frozen=True, rename="kebab"):
    readme: str
    dependencies: list[str]
    optional_dependencies: dict[str, list[str]]


class PyProject(msgspec.Struct, frozen=True):
    """The part of pyproject.toml that tests ask about."""

    project: _Project
    tool: _Tool


PYPROJECT = msgspec.toml.decode((ROOT / "pyproject.toml").read_bytes(), type=PyProject)


def read_compose() -> Compose:
    """deploy/compose.yaml, its anchors and merges resolved."""
    return msgspec.yaml.decode((DEPLOY / "compose.yaml").read_bytes(), type=Compose)


def locked_minor(distribution: str) -> str:
    """Major and minor version of `distribution` in uv.lock: `9.1` for 9.1.2.post2."""
    lock = msgspec.toml.decode((ROOT / "uv.lock").read_bytes(), type=_Lock)
    version = next(package.version for package in lock.package if package.name == distribution)
    return ".".join(version.split(".")[:2])
