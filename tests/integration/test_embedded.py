"""The control plane on one machine: the real nats-server and Valkey, and stand-ins for the services."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypedDict

import nats
import nats.aio.client
import psutil
import pytest
import redis.asyncio

from volt.contracts.streams import DESIRED_BYTES_MAX
from volt.embedded import (
    Child,
    ChildKeepsDying,
    ChildNotReady,
    ControlPlane,
    DataFolderBusy,
    DataFolderInUse,
    Limits,
    NatsNotDurable,
    Service,
)
from volt.embedded.nats import PAYLOAD_BYTES_MAX, render_config
from volt.embedded.program import start_until_ready

WAIT_SECONDS_MAX = 5.0
POLL_SECONDS = 0.005
LIMITS = Limits(ready_seconds_max=10.0, stop_grace_seconds=2.0, restarts_max=2)


def stand_in(work: str = "signal.pause()", before_ready: str = "") -> tuple[str, ...]:
    """The command of a service that does `work` once it has said that it is ready."""
    say_ready = "os.write(int(os.environ['VOLT_READY_FD']), b'ready\\n')"
    script = f"import os, signal, sys, time\n{before_ready}\n{say_ready}\n{work}"
    return (sys.executable, "-I", "-S", "-c", script)


class Told(TypedDict):
    """What a supervisor says of itself."""

    pids: list[int]
    nats_url: str


TWO_SERVICES: Mapping[str, Sequence[str]] = {"matcher": stand_in(), "gateway": stand_in()}


@pytest.fixture(autouse=True)
def _no_process_is_left() -> Iterator[None]:
    before = _children()
    yield
    assert _children() - before == set()


def _children() -> set[int]:
    """The processes below this one; servers that other tests share are among them."""
    return {process.pid for process in psutil.Process().children(recursive=True) if is_alive(process.pid)}


def running(data_dir: Path, services: Mapping[str, Sequence[str]], limits: Limits = LIMITS) -> ControlPlane:
    return ControlPlane(data_dir, "embedded", services=services, limits=limits)


async def test_both_servers_serve_and_no_process_is_left(tmp_path: Path) -> None:
    # A path that any careless quoting in the servers' configuration would break.
    async with running(tmp_path / 'it\'s a "folder" $HOME é', TWO_SERVICES) as control_plane:
        bus = await nats.connect(control_plane.nats_url)
        assert bus.max_payload == PAYLOAD_BYTES_MAX > DESIRED_BYTES_MAX
        assert (await bus.jetstream().account_info()).limits is not None
        await bus.close()
        pids = [control_plane.service(name).pid for name in ("nats", "valkey", "matcher", "gateway")]
        assert all(is_alive(pid) for pid in pids)
    assert not any(is_alive(pid) for pid in pids)


async def test_valkey_is_a_bounded_view_that_never_writes_to_disk_and_never_evicts(tmp_path: Path) -> None:
    async with running(tmp_path, {}) as control_plane, redis.asyncio.from_url(control_plane.redis_url) as view:
        wanted = {"save": "", "appendonly": "no", "maxmemory-policy": "noeviction", "bind": "127.0.0.1"}
        seen = await view.config_get(*wanted, "maxmemory", "dir")
        assert {name: seen[name] for name in wanted} == wanted
        assert int(seen["maxmemory"] or 0) > 0
        assert seen["dir"] == str(tmp_path / "valkey")


async def test_services_get_the_addresses_and_nothing_private_of_the_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOUD_SECRET", "hunter2")
    monkeypatch.setenv("VOLT_API_KEY", "hunter2")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318")
    write_env = f"import json; json.dump(dict(os.environ), open(f'{tmp_path}/env-{{sys.argv[1]}}', 'w'))"
    services = {name: (*stand_in(before_ready=write_env), name) for name in ("matcher", "gateway")}
    async with running(tmp_path, services) as control_plane:
        seen = {name: json.loads((tmp_path / f"env-{name}").read_text()) for name in services}
        wanted = {
            "VOLT_NATS_URL": control_plane.nats_url,
            "VOLT_REDIS_URL": control_plane.redis_url,
            "VOLT_PROFILE": "embedded",
            "VOLT_DATA": str(tmp_path),
            "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318",
        }
        assert wanted.items() <= seen["matcher"].items()
        assert seen["gateway"]["VOLT_GATEWAY_PORT"] == control_plane.gateway_url.rpartition(":")[2]
        assert not {"CLOUD_SECRET", "VOLT_API_KEY"} & (seen["matcher"] | seen["gateway"]).keys()


async def test_acknowledged_messages_survive_sigkill_of_the_bus(tmp_path: Path) -> None:
    async with running(tmp_path, {}) as control_plane:
        bus = await nats.connect(control_plane.nats_url, reconnect_time_wait=0.02, max_reconnect_attempts=-1)
        stream = bus.jetstream()
        await stream.add_stream(name="KEPT", subjects=["kept.>"])
        acks = [await stream.publish(f"kept.{number % 3}", b"%d" % number) for number in range(200)]
        before = control_plane.service("nats").pid
        os.kill(before, signal.SIGKILL)
        await until_replaced(control_plane.service("nats"), before)
        kept = await read_all(bus, "KEPT", len(acks))
        assert kept == [(ack.seq, b"%d" % number) for number, ack in enumerate(acks)]
        await bus.close()


async def test_a_bus_that_acknowledges_before_it_syncs_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def render_careless_config(name: str, folder: Path, port: int, monitor_port: int) -> bytes:
        config = json.loads(render_config(name, folder, port, monitor_port))
        del config["jetstream"]["sync_interval"]
        return json.dumps(config).encode()

    monkeypatch.setattr("volt.embedded.nats.render_config", render_careless_config)
    with pytest.raises(NatsNotDurable, match="sync_always False"):
        async with running(tmp_path, {}):
            pytest.fail("the control plane started")


async def test_a_killed_service_is_started_again(tmp_path: Path) -> None:
    async with running(tmp_path, TWO_SERVICES) as control_plane:
        matcher, others = control_plane.service("matcher"), control_plane.service("gateway")
        before, untouched = matcher.pid, others.pid
        os.kill(before, signal.SIGKILL)
        await until_replaced(control_plane.service("matcher"), before)
        assert others.pid == untouched


async def test_asked_for_kills_are_not_counted_as_deaths(tmp_path: Path) -> None:
    async with running(tmp_path, TWO_SERVICES) as control_plane:
        matcher = control_plane.service("matcher")
        pids = {matcher.pid}
        for _ in range(LIMITS.restarts_max + 2):
            await matcher.kill()
            await matcher.until_ready()
            pids.add(matcher.pid)
        assert len(pids) == LIMITS.restarts_max + 3


async def test_a_suspended_service_stays_down_until_it_is_restarted(tmp_path: Path) -> None:
    async with running(tmp_path, TWO_SERVICES) as control_plane:
        matcher, gateway = control_plane.service("matcher"), control_plane.service("gateway")
        matcher.auto_restart = False
        before = matcher.pid
        await matcher.kill()
        # The other's death and restart is a proof that the supervisor has had its turn meanwhile.
        await gateway.kill()
        await gateway.until_ready()
        assert not is_alive(matcher.pid)
        await matcher.restart()
        assert is_alive(matcher.pid)
        assert matcher.pid != before
        matcher.auto_restart = True
        await matcher.kill()
        await matcher.until_ready()


async def test_restart_replaces_a_running_service_once(tmp_path: Path) -> None:
    count_starts = "open('starts', 'a').write('x')"
    async with running(tmp_path, {"matcher": stand_in(before_ready=count_starts)}) as control_plane:
        before = control_plane.service("matcher").pid
        await control_plane.service("matcher").restart()
        assert not is_alive(before)
        await control_plane.service("matcher").kill()
        await control_plane.service("matcher").until_ready()
    assert (tmp_path / "starts").read_text() == "xxx"


async def test_a_service_that_keeps_dying_ends_the_control_plane_with_its_last_lines(tmp_path: Path) -> None:
    dies = stand_in("sys.exit('out of cheese')")
    with pytest.raises(ChildKeepsDying, match="out of cheese") as caught:
        async with running(tmp_path, {"gateway": stand_in(), "matcher": dies}):
            await asyncio.get_running_loop().create_future()
    assert caught.value.name == "matcher"
    assert caught.value.log_tail == "out of cheese"


async def test_a_service_that_fails_to_come_back_counts_each_try(tmp_path: Path) -> None:
    lives_once = "sys.exit('cannot recover') if os.path.exists('lived') else open('lived', 'w')"
    services = {"matcher": stand_in("os.kill(os.getpid(), signal.SIGKILL)", before_ready=lives_once)}
    with pytest.raises(ChildKeepsDying, match=r"after 2 restarts(?s:.*)cannot recover"):
        async with running(tmp_path, services):
            await asyncio.get_running_loop().create_future()


async def test_a_service_that_ends_before_it_is_ready_stops_the_start(tmp_path: Path) -> None:
    services = {"gateway": stand_in(), "matcher": stand_in(before_ready="sys.exit('no such setting')")}
    with pytest.raises(ChildNotReady, match=r"matcher ended with exit code 1 before(?s:.*)no such setting"):
        async with running(tmp_path, services):
            pytest.fail("the control plane started")


async def test_a_service_that_never_says_ready_stops_the_start_at_its_deadline(tmp_path: Path) -> None:
    services = {"matcher": stand_in(before_ready="print('waiting', flush=True); signal.pause()")}
    with pytest.raises(ChildNotReady, match=r"matcher was not ready after 0\.5 s(?s:.*)waiting"):
        async with running(tmp_path, services, Limits(ready_seconds_max=0.5)):
            pytest.fail("the control plane started")


async def test_a_child_that_is_not_ready_in_time_is_gone(tmp_path: Path) -> None:
    child = Child("mute", stand_in(before_ready="signal.pause()"), {}, tmp_path, tmp_path / "mute.log")
    with pytest.raises(ChildNotReady, match="mute was not ready"):
        await start_until_ready(child, None, [], seconds_max=0.1)
    assert not is_alive(child.pid)


async def test_an_error_of_the_block_leaves_no_process_and_stays_the_same_error(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="mine"):
        async with running(tmp_path, TWO_SERVICES):
            raise KeyError("mine")


async def test_a_cancelled_block_leaves_no_process(tmp_path: Path) -> None:
    started = asyncio.Event()

    async def block() -> None:
        async with running(tmp_path, TWO_SERVICES):
            started.set()
            await asyncio.get_running_loop().create_future()

    task = asyncio.create_task(block())
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_the_next_start_has_the_same_addresses(tmp_path: Path) -> None:
    addresses = []
    for _ in range(2):
        async with running(tmp_path, {}) as control_plane:
            addresses.append((control_plane.nats_url, control_plane.redis_url, control_plane.gateway_url))
    assert addresses[0] == addresses[1]


async def test_two_control_planes_on_one_folder_are_refused(tmp_path: Path) -> None:
    async with running(tmp_path, {}) as control_plane:
        with pytest.raises(DataFolderBusy, match=str(os.getpid())):
            async with running(tmp_path, {}):
                pytest.fail("a second control plane started")
        assert is_alive(control_plane.service("nats").pid)


async def test_a_temporary_folder_is_removed_and_one_with_files_is_not_accepted(tmp_path: Path) -> None:
    folder = tmp_path / "scratch"
    async with ControlPlane(folder, "embedded", services={}, temporary=True):
        assert (folder / "nats").is_dir()
    assert not folder.exists()
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(DataFolderInUse, match="already holds files"):
        async with ControlPlane(tmp_path, "embedded", services={}, temporary=True):
            pytest.fail("the control plane started")
    assert (tmp_path / "thesis.tex").exists()


async def test_a_killed_supervisor_leaves_no_orphan_and_its_folder_can_be_used_at_once(tmp_path: Path) -> None:
    with killed_supervisor(tmp_path, TWO_SERVICES) as told:
        async with running(tmp_path, TWO_SERVICES) as control_plane:
            # The lock that the children inherited has made this start wait for their end.
            assert not any(is_alive(pid) for pid in told["pids"])
            assert control_plane.nats_url == told["nats_url"]


async def test_a_folder_stays_locked_while_a_child_of_a_killed_supervisor_lives(tmp_path: Path) -> None:
    opt_out = "import ctypes; ctypes.CDLL(None).prctl(1, 0)"
    with killed_supervisor(tmp_path, {"matcher": stand_in(before_ready=opt_out)}) as told:
        with pytest.raises(DataFolderBusy):
            async with running(tmp_path, {}):
                pytest.fail("a second control plane started")
        assert [is_alive(pid) for pid in told["pids"]] == [False, False, True]


async def test_a_child_that_ignores_sigterm_is_killed_with_its_own_children_after_the_grace(tmp_path: Path) -> None:
    script = """
        import os, signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        grandchild = os.fork()
        if grandchild:
            print(grandchild, flush=True)
            os.write(int(os.environ["VOLT_READY_FD"]), b"ready\\n")
        signal.pause()
    """
    argv = [sys.executable, "-I", "-S", "-c", textwrap.dedent(script)]
    child = Child("stubborn", argv, {}, tmp_path, tmp_path / "stubborn.log")
    await start_until_ready(child, None, [], seconds_max=10.0)
    grandchild = int(child.log_tail)
    try:
        await child.stop(grace_seconds=0.05)
        assert await child.wait() == -signal.SIGKILL
        await until(lambda: not is_alive(grandchild))
    finally:
        if is_alive(grandchild):
            os.kill(grandchild, signal.SIGKILL)


async def test_a_log_over_its_bound_is_set_aside_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("volt.embedded.child.LOG_BYTES_MAX", 10)
    log = tmp_path / "speaker.log"
    child = Child("speaker", [sys.executable, "-I", "-S", "-c", "print('twelve bytes')"], {}, tmp_path, log)
    for _ in range(3):
        await child.start({}, [])
        assert await child.wait() == 0
        assert child.log_tail == "twelve bytes"
    assert log.with_suffix(".log.1").read_text() == "twelve bytes\n"


def is_alive(pid: int) -> bool:
    """Whether the process exists and is not merely waiting to be reaped."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(int(WAIT_SECONDS_MAX / POLL_SECONDS)):
        if condition():
            return
        await asyncio.sleep(POLL_SECONDS)
    pytest.fail(f"not so within {WAIT_SECONDS_MAX} s")


async def until_replaced(service: Service, before: int) -> None:
    """Wait until another process than `before` runs and is ready."""
    await until(lambda: service.pid != before)
    await service.until_ready()


async def read_all(bus: nats.aio.client.Client, stream: str, count: int) -> list[tuple[int, bytes]]:
    """Sequence and payload of every message of a stream of `count` messages."""
    context = bus.jetstream()
    info = await context.stream_info(stream)
    assert info.state.messages == count
    messages = [await context.get_msg(stream, seq=seq) for seq in range(1, count + 1)]
    return [(message.seq or 0, message.data or b"") for message in messages]


@contextmanager
def killed_supervisor(data_dir: Path, services: Mapping[str, Sequence[str]]) -> Iterator[Told]:
    """Run a control plane in a process of its own and SIGKILL that; whoever is left at the end is killed too."""
    script = f"""
        import asyncio, json
        from pathlib import Path
        from volt.embedded import ControlPlane

        async def main():
            services = {dict(services)!r}
            async with ControlPlane(Path({str(data_dir)!r}), "embedded", services=services) as control_plane:
                pids = [control_plane.service(name).pid for name in ("nats", "valkey", *services)]
                print(json.dumps(dict(pids=pids, nats_url=control_plane.nats_url)), flush=True)
                await asyncio.get_running_loop().create_future()

        asyncio.run(main())
    """
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE) as supervisor:
        assert supervisor.stdout is not None
        told: Told = json.loads(supervisor.stdout.readline())
        assert all(is_alive(pid) for pid in told["pids"])
        supervisor.kill()
    try:
        yield told
    finally:
        for pid in filter(is_alive, told["pids"]):
            os.kill(pid, signal.SIGKILL)
