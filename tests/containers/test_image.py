"""The image of a service, built for real by deploy/Dockerfile, on a base made of this machine's own Python."""

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.containers.base_image import ENVIRONMENT, NotPossible, write_base_image
from tests.containers.daemon import Docker, DockerFailed, docker_daemon, why_no_daemon
from tests.containers.deployment import DEPLOY, ROOT
from tests.support.nats_server import NatsServer

BUILD_SECONDS_MAX = 240.0
READY_SECONDS_MAX = 30.0
STOP_SECONDS_MAX = 10
POLL_SECONDS = 0.2
BASE = "volt-test-base"
SERVICE = "volt_matcher"

_missing = why_no_daemon()
pytestmark = [
    pytest.mark.skipif(_missing is not None, reason=str(_missing)),
    # The first test waits for the build, most of which is the installation of the dependencies.
    pytest.mark.timeout(BUILD_SECONDS_MAX + 60),
]


@pytest.fixture(scope="module")
def docker() -> Iterator[Docker]:
    with ExitStack() as stack:
        try:
            running = stack.enter_context(docker_daemon())
        except DockerFailed as reason:
            # Root in a container may lack the rights to start one. Where CI installs Docker, it has to start.
            if "CI" in os.environ:
                raise
            pytest.skip(str(reason))
        yield running


@pytest.fixture(scope="module")
def base(docker: Docker, tmp_path_factory: pytest.TempPathFactory) -> str:
    tree = tmp_path_factory.mktemp("base") / "root.tar"
    try:
        write_base_image(tree)
    except NotPossible as reason:
        pytest.skip(f"no base image can be made here: {reason}")
    changes = [f"--change=ENV {name}={value}" for name, value in ENVIRONMENT.items()]
    docker.run("import", *changes, str(tree), BASE)
    tree.unlink()
    return BASE


@pytest.fixture(scope="module")
def image(docker: Docker, base: str) -> str:
    return build(docker, base, SERVICE)


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path)
    server.start()
    yield server
    server.kill()


def test_a_service_says_ready_on_a_real_bus_and_ends_well_when_it_is_told(
    docker: Docker, image: str, bus: NatsServer
) -> None:
    with container(docker, image, bus) as name:
        wait_until_healthy(docker, name)
        docker.run("stop", f"--time={STOP_SECONDS_MAX}", name)
        assert docker.run("inspect", "--format={{.State.ExitCode}}", name) == "0"
        assert events(docker, name) == ["ready", "stopping"]


def test_a_service_is_healthy_only_when_it_has_reached_the_bus(docker: Docker, image: str, bus: NatsServer) -> None:
    how, *question = json.loads(docker.run("inspect", "--format={{json .Config.Healthcheck.Test}}", image))
    assert how == "CMD"
    bus.kill()
    with container(docker, image, bus) as name:
        with pytest.raises(DockerFailed):
            docker.run("exec", name, *question)
        bus.start()
        wait_until_healthy(docker, name)
        docker.run("exec", name, *question)


def test_a_service_may_write_to_its_folder_and_not_to_its_code(docker: Docker, image: str) -> None:
    question = "import os, volt; print(os.getuid(), os.access('.', os.W_OK), os.access(volt.__file__, os.W_OK))"
    answer = docker.run("run", "--rm", "--network=none", "--entrypoint=python", image, "-P", "-c", question)
    assert answer == "10001 True False"


def test_a_misspelt_service_ends_the_build(docker: Docker, base: str, image: str) -> None:
    with pytest.raises(DockerFailed, match="No module named 'volt_macher'"):
        build(docker, base, "volt_macher")


def build(docker: Docker, base: str, service: str) -> str:
    """Builds an image as deploy/Dockerfile says, with the host's network: the daemon has no other, and uv needs one."""
    tag = service.replace("_", "-")
    arguments = [f"--build-arg=BASE={base}", f"--build-arg=SERVICE={service}", "--network=host", f"--tag={tag}"]
    docker.run("build", f"--file={DEPLOY}/Dockerfile", *arguments, str(ROOT), seconds_max=BUILD_SECONDS_MAX)
    return tag


@contextmanager
def container(docker: Docker, image: str, bus: NatsServer) -> Iterator[str]:
    """A container that is shut in as compose shuts it in, and asked about its health more often."""
    limits = ["--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges:true"]
    settings = [f"--env=VOLT_NATS_URL={bus.url}", "--env=VOLT_PROFILE=served"]
    name = docker.run("run", "--detach", "--network=host", "--health-interval=500ms", *limits, *settings, image)
    try:
        yield name
    finally:
        docker.run("rm", "--force", name)


def wait_until_healthy(docker: Docker, name: str) -> None:
    deadline = time.monotonic() + READY_SECONDS_MAX
    state = ""
    while state != "running healthy":
        assert time.monotonic() < deadline, f"{state}:\n{docker.run('logs', name)}"
        time.sleep(POLL_SECONDS)
        state = docker.run("inspect", "--format={{.State.Status}} {{.State.Health.Status}}", name)


def events(docker: Docker, name: str) -> Sequence[str]:
    """What a service has logged, by the names of the events."""
    return [json.loads(line)["event"] for line in docker.run("logs", name).splitlines()]
