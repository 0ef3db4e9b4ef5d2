"""The project keeps the house rules, and each rule catches what it is there to catch."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.style import rules
from tests.style.rules import RULES, Source

ROOT = Path(__file__).parents[2]
SOURCES = tuple(rules.project_sources(ROOT))

Rule = Callable[[Source], Iterator[str]]

DOMAIN = "services/volt_matcher/domain.py"
EFFECTS = "services/volt_matcher/effects.py"
CLI = "libs/volt/cli/jobs.py"
FAST = "tests/unit/billing/test_domain.py"
LONG_FUNCTION = "def long():\n" + "    x = 1\n" * rules.FUNCTION_LINES_MAX

# Samples of paths and marks are put together here, so that this file keeps the rules that it tests.
BROKEN: list[tuple[Rule, str, str]] = [
    (rules.impure_domain, DOMAIN, "import time"),
    (rules.impure_domain, DOMAIN, "from datetime import datetime"),
    (rules.impure_domain, DOMAIN, "import random, uuid"),
    (rules.impure_domain, DOMAIN, "from os import urandom"),
    (rules.impure_domain, DOMAIN, "def decide():\n    import secrets"),
    (rules.impure_domain, DOMAIN, "from volt.runtime import clock"),
    (rules.impure_domain, DOMAIN, "from volt_matcher.settings import Settings"),
    (rules.impure_domain, DOMAIN, "from . import effects"),
    (rules.impure_domain, DOMAIN, "at = message.clock.now()"),
    (rules.impure_domain, DOMAIN, "at = clock().now()"),
    (rules.impure_domain, DOMAIN, "order = hash(node)"),
    (rules.impure_domain, DOMAIN, "text = open('asks').read()"),
    (rules.impure_domain, DOMAIN, "async def decide(): ..."),
    (rules.impure_domain, "services/volt_matcher/place.py", "import os"),
    (rules.impure_domain, "services/volt_agent/domain/leases.py", "from ..settings import Settings"),
    (rules.too_long, EFFECTS, "x = 1\n" * (rules.FILE_LINES_MAX + 1)),
    (rules.too_long, EFFECTS, LONG_FUNCTION),
    (rules.swallowed_exceptions, EFFECTS, "try:\n    go()\nexcept Exception:\n    pass"),
    (rules.swallowed_exceptions, EFFECTS, "try:\n    go()\nexcept:\n    ..."),
    (
        rules.swallowed_exceptions,
        EFFECTS,
        "while go():\n  try:\n    go()\n  except (OSError, Exception):\n    continue",
    ),
    (rules.swallowed_exceptions, EFFECTS, "with contextlib.suppress(BaseException):\n    go()"),
    (rules.float_money, EFFECTS, "price_microusd: float = 0"),
    (rules.float_money, EFFECTS, "asks_microusd: dict[str, float] = {}"),
    (rules.float_money, EFFECTS, "def pay(amount_microusd: float | None) -> None: ..."),
    (rules.float_money, EFFECTS, "def due_microusd() -> float: ..."),
    (rules.float_money, EFFECTS, "half = self.price_microusd / 2"),
    (rules.float_money, EFFECTS, "mean = sum(lease.due_microusd for lease in leases) / len(leases)"),
    (rules.float_money, EFFECTS, "price_microusd /= 2"),
    (rules.float_money, EFFECTS, "fee_microusd = 0.05 * price_microusd"),
    (rules.float_money, EFFECTS, "dollars = float(price_microusd)"),
    (rules.stray_messages, EFFECTS, "class PlaceBid(Command): ..."),
    (rules.stray_messages, "libs/volt/runtime/log.py", "class BidPlaced(messages.Event, frozen=True): ..."),
    (rules.stray_subjects, EFFECTS, "subject = 'log.market'"),
    (rules.stray_subjects, EFFECTS, "subject = f'cmd.{account}.job'"),
    (rules.stray_subjects, "benchmarks/beats.py", "subject = f'heartbeats.{account}.{node}'"),
    (rules.stray_subjects, "libs/volt/cli/agent.py", "subject = 'desired.>'"),
    (rules.machine_paths, "docs/start.md", "Open `/" + "work/main` first."),
    (rules.machine_paths, EFFECTS, "folder = '/" + "tmp/volt'"),
    (rules.machine_paths, "deploy/volt.service", "ExecStart=/" + "root/.local/bin/volt"),
    (rules.unfinished_marks, "docs/start.md", "TO" + "DO: say more"),
    (rules.unfinished_marks, EFFECTS, "x = 1  # FIX" + "ME later"),
    (rules.blanket_ignores, EFFECTS, "x = y  # type: ignore"),
    (rules.blanket_ignores, EFFECTS, "x = y  # noqa"),
    (rules.blanket_ignores, EFFECTS, "# ruff: noqa\nx = y"),
    (rules.blanket_ignores, EFFECTS, "# mypy: ignore-errors\nx = y"),
    (rules.prints, EFFECTS, "print('here')"),
    (rules.real_sleeps, FAST, "time.sleep(0)"),
    (rules.real_sleeps, FAST, "async def test():\n    await asyncio.sleep(0.1)"),
    (rules.real_sleeps, "tests/simulation/world.py", "from time import sleep\nsleep(1)"),
    (rules.cli_behind_the_sdk, CLI, "from volt.runtime.nats import connect"),
    (rules.cli_behind_the_sdk, CLI, "from volt import embedded"),
]

KEPT: list[tuple[Rule, str, str]] = [
    (rules.impure_domain, DOMAIN, "import math\nfrom collections.abc import Iterable\nimport msgspec"),
    (rules.impure_domain, DOMAIN, "from volt.contracts.bids import BidAccepted\nfrom volt import contracts"),
    (rules.impure_domain, DOMAIN, "from volt_matcher import price\nfrom .units import round_up"),
    (rules.impure_domain, "services/volt_agent/domain/leases.py", "from . import states\nfrom ..domain import states"),
    (rules.too_long, EFFECTS, LONG_FUNCTION.removesuffix("    x = 1\n")),
    (rules.swallowed_exceptions, EFFECTS, "try:\n    go()\nexcept OSError:\n    pass"),
    (rules.swallowed_exceptions, EFFECTS, "try:\n    go()\nexcept Exception:\n    log.exception('went')\n    raise"),
    (rules.float_money, EFFECTS, "each_microusd, rest_microusd = divmod(price_microusd, 2)\nratio = a_ms / b_ms"),
    (rules.float_money, EFFECTS, "text = str(Decimal(price_microusd) / MICROUSD_PER_USD)"),
    (rules.float_money, EFFECTS, "path = folder / f'{price_microusd}.txt'\nload = busy / len(asks_microusd)"),
    (rules.stray_messages, EFFECTS, "class Stopped(asyncio.Event): ..."),
    (rules.stray_messages, "libs/volt/contracts/bids.py", "class PlaceBid(Command): ..."),
    (rules.stray_subjects, "libs/volt/contracts/subjects.py", "subject = 'log.market'"),
    (rules.stray_subjects, EFFECTS, "log.info('read the log. Again.')\npath = folder / 'desired.json'"),
    (rules.machine_paths, "docs/start.md", "See https://volt.example/work/plan, ./tmp/x and ~/tmp/x; mount `/tmp`."),
    (rules.blanket_ignores, EFFECTS, "x = y  # type: ignore[operator]  # a union built at run time"),
    (rules.blanket_ignores, EFFECTS, "x = '# noqa'  # noqa: E501"),
    (rules.prints, CLI, "print('{}')"),
    (rules.real_sleeps, FAST, "async def test():\n    await asyncio.sleep(0)\n    await clock.sleep(5)"),
    (rules.real_sleeps, "tests/integration/test_up.py", "time.sleep(0.1)"),
    (rules.cli_behind_the_sdk, CLI, "from volt.sdk import Client\nfrom volt.contracts import errors"),
    (rules.cli_behind_the_sdk, "libs/volt/cli/demo.py", "from volt.embedded import up"),
]


def _name(value: Rule | str) -> str:
    return value.partition("\n")[0] if isinstance(value, str) else value.__name__


@pytest.mark.parametrize("rule", RULES, ids=_name)
def test_the_project_keeps(rule: Rule) -> None:
    findings = [finding for source in SOURCES for finding in rule(source)]
    assert not findings, "\n" + "\n".join(findings)


def test_domain_code_is_pure() -> None:
    findings = [finding for source in rules.domain_sources(SOURCES) for finding in rules.impure_domain(source)]
    assert not findings, "\n" + "\n".join(findings)


def test_every_service_has_the_same_files() -> None:
    assert list(rules.missing_service_files(source.path for source in SOURCES)) == []


@pytest.mark.parametrize(("rule", "path", "text"), BROKEN, ids=_name)
def test_a_broken_rule_is_found_where_it_is_broken(rule: Rule, path: str, text: str) -> None:
    findings = list(rule(Source(path, text)))
    assert findings
    assert all(finding.startswith(f"{path}:") for finding in findings)


@pytest.mark.parametrize(("rule", "path", "text"), KEPT, ids=_name)
def test_what_only_looks_like_it_is_left_alone(rule: Rule, path: str, text: str) -> None:
    assert list(rule(Source(path, text))) == []


def test_every_rule_has_a_sample_that_breaks_it() -> None:
    assert {rule.__name__ for rule, _, _ in BROKEN} == {rule.__name__ for rule in (rules.impure_domain, *RULES)}


def test_what_domain_code_imports_of_its_own_package_is_domain_code() -> None:
    texts = {
        "services/volt_new/domain/__init__.py": "from volt_new.domain import states\nfrom volt_new import rules",
        "services/volt_new/domain/states.py": "from volt.contracts import jobs",
        "services/volt_new/rules.py": "from . import names, settings",
        "services/volt_new/names.py": "import time",
        "services/volt_new/settings.py": "import os",
        "services/volt_new/unrelated.py": "import os",
        "services/volt_matcher/place.py": "",
    }
    chosen = {source.path for source in rules.domain_sources(Source(*item) for item in texts.items())}
    assert chosen == texts.keys() - {"services/volt_new/settings.py", "services/volt_new/unrelated.py"}


def test_a_service_without_its_handlers_is_found_and_a_package_counts_as_a_file() -> None:
    files = {"__init__.py", "__main__.py", "domain/__init__.py", "effects.py", "handlers.py", "settings.py"}
    paths = {f"services/volt_new/{name}" for name in files} | {"services/volt_begun/domain.py"}
    assert list(rules.missing_service_files(paths)) == []
    handlers = "services/volt_new/handlers.py"
    assert list(rules.missing_service_files(paths - {handlers})) == ["services/volt_new: has no handlers.py"]


@pytest.mark.parametrize("with_git", [True, False])
def test_the_project_is_what_could_be_committed(tmp_path: Path, with_git: bool) -> None:
    for name in ("kept.py", ".ci/run", "__pycache__/kept.pyc", ".venv/lib/other.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text("x = 1\n")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\xff")
    ignored = [".gitignore"] if with_git else []
    if with_git:
        (tmp_path / ".gitignore").write_text("__pycache__/\n.venv/\n")
        subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    assert {source.path for source in rules.project_sources(tmp_path)} == {"kept.py", ".ci/run", *ignored}
