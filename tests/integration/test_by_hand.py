"""The path that the README walks by hand: the same commands, as processes, and what a person then sees."""

import asyncio
import importlib.util
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest

from tests.integration.house import NODES, SECONDS_MAX, House, Terminal, until
from volt.audit.report import LedgerReport, MarketReport
from volt.contracts.http import Balance, Job, JobWaiting, Offer
from volt.embedded import Context, read_context

ROOT = Path(__file__).parents[2]
LONG = (
    "import os, time; print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], flush=True)",
    "time.sleep(600)",
)
SHORT = "print('done', flush=True)"
GANG = ("--gpu", "h100-80gb", "--count", "2", "--nodes", "2")
TOO_MANY = ("--gpu", "h100-80gb", "--count", "16", "--nodes", "2")


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    house = House(tmp_path_factory.mktemp("house"))
    try:
        yield house
    finally:
        for terminal in reversed(house.terminals):
            terminal.kill()


@pytest.fixture(scope="module")
def running(house: House) -> str:
    """A job on both nodes that runs until it is released."""
    until(lambda: house.alive() == len(NODES))
    return house.deploy(*GANG, command="; ".join(LONG))


def test_offers_show_both_nodes(house: House) -> None:
    until(lambda: house.alive() == len(NODES))
    shown = house.volt("offers", "--json")
    offers = [msgspec.convert(one, Offer) for one in json.loads(shown.stdout)]
    assert [(one.gpu, one.price_usd_per_gpu_hour, one.place.fabric) for one in offers] == [
        ("h100-80gb", "1.850000", "A")
    ] * 2
    assert {one.runtime for one in offers} == {"process"}
    assert house.volt("offers").stdout.count("h100-80gb") == 2
    assert house.volt("offers", "--region", "us", "--json").stdout == "[]\n"


def test_a_deployed_job_is_ready_and_status_shows_it(house: House, running: str) -> None:
    assert "granted" in "".join(one.stderr for one in house.terminals)
    (listed,) = json.loads(house.volt("status", "--json").stdout)
    assert (listed["id"], listed["state"]) == (running, "ready")
    one = json.loads(house.volt("status", running, "--json").stdout)
    assert [member["rank"] for member in one["members"]] == [0, 1]
    assert running in house.volt("status").stdout
    assert "ready" in house.volt("status", running).stdout


def test_logs_follow_the_ranks_until_the_release(house: House, running: str) -> None:
    following = house.open("follow", "logs", "--data", str(house.data), "-f")
    for rank in range(2):
        following.says(f"[1.{rank}] rank {rank} of 2")
    only = house.open("only", "logs", "--data", str(house.data), "-f", "--rank", "1", running)
    only.says("rank 1 of 2")
    only.interrupt()
    assert only.ends() == 130
    assert "rank 0" not in only.stdout

    released = house.volt("release")
    assert (released.process.returncode, released.stdout) == (0, "")
    assert running in released.stderr
    assert following.ends() == 0
    assert following.stderr == ""
    assert house.volt("release").process.returncode == 4


def test_the_bill_is_on_the_balance_and_the_audit_finds_it_right(house: House, running: str) -> None:
    until(lambda: house.job(running).state == "closed")
    shown = house.volt("balance", "--json")
    balance = msgspec.json.decode(shown.stdout, type=Balance)
    assert balance.on_hold_usd == "0.000000"
    assert balance.wallet_usd in house.volt("balance").stdout
    audit = house.volt("ledger", "audit", "--json")
    assert audit.process.returncode == 0
    report = msgspec.json.decode(audit.stdout, type=LedgerReport)
    assert report.is_balanced
    assert [(one.job, one.stage) for one in report.jobs] == [(running, "closed")]
    assert "balanced" in house.volt("ledger", "audit").stdout


def test_the_market_is_audited_and_its_passes_are_repeated(house: House, running: str) -> None:
    audit = house.volt("market", "audit", "--json")
    assert audit.process.returncode == 0
    report = msgspec.json.decode(audit.stdout, type=MarketReport)
    assert report.findings == ()
    assert report.leases >= len(house.job(running).members)
    assert house.volt("market", "audit").stdout.startswith("every rule kept: ")
    verified = house.volt("market", "verify")
    assert verified.process.returncode == 0
    assert verified.stdout.strip() == f"{report.passes} passes repeated, 0 of them come out otherwise"


def test_explain_says_what_stands_in_the_way_and_ctrl_c_says_what_still_costs(house: House) -> None:
    arguments = ("--data", str(house.data), *TOO_MANY, "--", "true")
    deploying = house.open("deploying", "deploy", *arguments)
    deploying.says("funded")
    deploying.interrupt()
    assert deploying.ends() == 130
    job = deploying.stdout.strip()
    assert f"volt release {job}" in deploying.stderr
    until(lambda: house.job(job).waiting is not None)
    waiting = msgspec.json.decode(house.volt("explain", job, "--json").stdout, type=JobWaiting)
    assert waiting.infeasible
    explained = house.volt("explain").stdout
    assert waiting.message in explained
    suggested = [line.partition(" && volt deploy ")[2] for line in explained.splitlines() if "volt release" in line]
    assert len(suggested) == len(waiting.alternatives) > 0
    for command in suggested:
        assert house.volt("deploy", "--dry-run", *shlex.split(command)).process.returncode == 0
    assert house.volt("release", job, "--json").process.returncode == 0
    assert house.volt("explain", "jnosuch").process.returncode == 4


def test_a_cluster_grows_and_shrinks_by_its_buyer_s_wish(house: House) -> None:
    job = house.deploy("--gpu", "h100-80gb", "--count", "1", command="; ".join(LONG))
    for count, generation in ((2, 2), (1, 3)):
        scaled = house.volt("scale", "--count", str(count), "--json", job)
        assert scaled.process.returncode == 0, scaled.stderr
        now = msgspec.json.decode(scaled.stdout, type=Job)
        assert (now.state, len(now.members), now.generation) == ("ready", count, generation)
    refused = house.volt("scale", "--count", "0", job)
    assert (refused.process.returncode, refused.stdout) == (3, "")
    assert house.volt("release", job).process.returncode == 0
    lines = sorted(line for line in house.volt("logs", job).stdout.splitlines() if "rank 0" in line)
    assert lines == ["[1.0] rank 0 of 1", "[2.0] rank 0 of 2", "[3.0] rank 0 of 1"]
    for check in (("ledger", "audit"), ("market", "verify"), ("market", "audit")):
        assert house.volt(*check).process.returncode == 0


def test_the_views_are_rebuilt_as_they_were(house: House, running: str) -> None:
    before = house.job(running)
    rebuilt = house.volt("views", "rebuild")
    assert (rebuilt.process.returncode, rebuilt.stdout) == (0, "")
    assert "rebuilt up to" in rebuilt.stderr
    assert house.job(running) == before


def test_an_account_is_opened_beside_the_first_and_elsewhere_by_address(house: House) -> None:
    lab, elsewhere = house.folder / "lab", house.folder / "elsewhere"
    opened = house.volt("account", "open", "lab", "--into", str(lab), "--json")
    assert json.loads(opened.stdout)["api_key"] == read_context(lab).api_key
    assert json.loads(house.volt("balance", "--json", data=lab).stdout)["account"] == "lab"

    context = read_context(house.data)
    addresses = ("--nats-url", context.nats_url, "--gateway-url", context.gateway_url)
    opened = house.volt("account", "open", "club", *addresses, "--into", str(elsewhere), data=house.folder / "none")
    assert opened.process.returncode == 0, opened.stderr
    assert opened.stdout.strip() == read_context(elsewhere).api_key
    assert json.loads(house.volt("balance", "--json", data=elsewhere).stdout)["account"] == "club"

    again = house.volt("account", "open", "lab", "--json")
    assert (again.process.returncode, again.stdout) == (3, "")
    assert "account_exists" in again.stderr


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (("--max-price", "1e3"), "invalid_amount"),
        (("--max-price", "-1"), "invalid_amount"),
        (("--max-duration", "24"), "invalid_duration"),
        (("--gpu", "h10O-80gb"), "unknown_gpu_model"),
        (("--count", "0"), "count_out_of_range"),
    ],
)
def test_a_request_that_is_refused_exits_3_and_says_why(options: tuple[str, ...], code: str, house: House) -> None:
    gpu = () if "--gpu" in options else ("--gpu", "h100-80gb")
    refused = house.volt("deploy", "--detach", *gpu, "--count", "1", *options, "--", "true")
    assert (refused.process.returncode, refused.stdout) == (3, "")
    assert code in refused.stderr


def test_a_wrong_key_exits_6(house: House) -> None:
    wrong = house.folder / "wrong"
    wrong.mkdir()
    (wrong / "context.json").write_text(json.dumps(_addresses(read_context(house.data)) | {"api_key": "wrong"}))
    refused = house.volt("balance", "--json", data=wrong)
    assert (refused.process.returncode, refused.stdout) == (6, "")


def test_the_example_publishes_a_job_with_a_plain_client(house: House) -> None:
    context = read_context(house.data)
    script = [sys.executable, str(ROOT / "examples" / "publish_job.py"), context.nats_url, context.account]
    command = [*script, "--count", "2", "--nodes", "2", "--", sys.executable, "-c", SHORT]
    example = Terminal(house.folder, "example", command)
    house.terminals.append(example)
    assert example.ends() == 0, example.stdout + example.stderr
    lines = example.stdout.splitlines()
    assert lines[0].startswith("requested j")
    assert "released: completed" in lines
    assert any(line.startswith("granted: ") for line in lines)


def test_the_example_tells_of_a_wrong_address_in_one_line() -> None:
    command = [sys.executable, str(ROOT / "examples" / "publish_job.py"), "nats://127.0.0.1:1", "lab", "--", "true"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)  # our own program
    assert (told.returncode, told.stdout, told.stderr.count("\n")) == (1, "", 1)
    assert "no bus at nats://127.0.0.1:1" in told.stderr


def test_the_example_refuses_what_can_be_no_account() -> None:
    command = [sys.executable, str(ROOT / "examples" / "publish_job.py"), "nats://127.0.0.1:1", "Lab!", "--", "true"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)  # our own program
    assert (told.returncode, told.stdout) == (2, "")
    assert "'Lab!' is no account name" in told.stderr


def test_the_example_is_left_by_ctrl_c_without_a_word_too_many(house: House) -> None:
    context = read_context(house.data)
    script = [sys.executable, str(ROOT / "examples" / "publish_job.py"), context.nats_url, context.account]
    example = Terminal(house.folder, "left", [*script, "--gpu", "b200", "--", "true"])
    house.terminals.append(example)
    until(lambda: "waiting: " in example.stdout)
    example.interrupt()
    assert example.ends() == 130
    job = example.stdout.splitlines()[0].removeprefix("requested ")
    assert example.stderr == f"\nnot followed any longer; once requested, {job} goes on: `volt release {job}` ends it\n"
    assert house.volt("release", job).process.returncode == 0


def test_the_example_does_not_wait_for_ever_for_an_account_that_is_not_there(
    house: House, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = importlib.util.spec_from_file_location("publish_job", ROOT / "examples" / "publish_job.py")
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    monkeypatch.setattr(example, "ANSWER_SECONDS_MAX", 1.0)
    monkeypatch.setattr(sys, "argv", ["publish_job", read_context(house.data).nats_url, "nosuch", "--", "true"])
    assert asyncio.run(example.main(example.parse_arguments())) == 1
    told = capsys.readouterr().err
    assert "'nosuch'" in told
    assert "`volt dlq list`" in told
    assert "1 dead letter\n" in house.volt("dlq", "list").stderr


def test_a_second_control_plane_in_the_folder_is_refused(house: House) -> None:
    second = house.volt("up")
    assert (second.process.returncode, second.stdout) == (1, "")
    assert "data_folder_busy" in second.stderr
    assert f"already runs in {house.data}" in second.stderr


def test_a_restart_keeps_what_is_known_and_the_agents_come_back(house: House, running: str) -> None:
    before, job = read_context(house.data), house.job(running)
    children = psutil.Process(house.up.process.pid).children(recursive=True)
    house.up.interrupt()
    assert house.up.ends() == 0
    assert not any(child.is_running() for child in children)
    stopped = house.volt("status", "--json")
    assert (stopped.process.returncode, stopped.stdout) == (5, "")
    waiting = house.volt("wait", running)
    assert (waiting.process.returncode, waiting.stdout) == (5, "")
    assert "gateway_unreachable" in waiting.stderr

    house.up = house.start_up()
    assert read_context(house.data) == before
    assert house.job(running) == job
    until(lambda: house.alive() == len(NODES))
    assert all(agent.process.poll() is None for agent in house.agents)
    deployed = house.deploy(*GANG, command=SHORT)
    waited = house.volt("wait", deployed, "--json")
    assert waited.process.returncode == 0
    assert json.loads(waited.stdout)["release_reason"] == "completed"


def test_ctrl_c_everywhere_leaves_nothing_behind(house: House) -> None:
    job = house.deploy(*GANG, command="; ".join(LONG))
    assert house.job(job).state == "ready"
    for agent in house.agents:
        agent.interrupt()
    assert [agent.ends() for agent in house.agents] == [0, 0]
    house.up.interrupt()
    assert house.up.ends() == 0
    until(lambda: house.left() == [])
    assert house.up.stdout == ""


def _addresses(context: Context) -> dict[str, str]:
    return {
        "nats_url": context.nats_url,
        "redis_url": context.redis_url,
        "gateway_url": context.gateway_url,
        "account": context.account,
    }
