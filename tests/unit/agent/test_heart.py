"""A beat process that ends by itself has a successor, unless another agent is the node, or it happens too often."""

import pytest

from volt_agent import heart
from volt_agent.beat import EXIT_IDENTITY_TAKEN
from volt_agent.heart import SUCCESSORS_MAX, SUCCESSORS_MS, Heart, HeartStopped
from volt_agent.settings import Settings

SETTINGS = Settings(nats_url="nats://127.0.0.1:1", account="lab", state="", price=1)


class Mortal(Heart):
    """One whose beat processes live for `lives_ms` and end with these codes, one after the other."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, lives_ms: int, *codes: int) -> None:
        super().__init__(SETTINGS, "n1", "run")
        self.codes, self.now_ms, self.lives_ms = list(codes), 1_000, lives_ms
        monkeypatch.setattr(heart, "boot_ms", lambda: self.now_ms)

    async def _beat_on(self) -> int:
        self.now_ms += self.lives_ms
        return self.codes.pop(0)


async def test_a_node_that_another_agent_is_has_no_successor(monkeypatch: pytest.MonkeyPatch) -> None:
    beating = Mortal(monkeypatch, 100, -9, EXIT_IDENTITY_TAKEN)
    with pytest.raises(HeartStopped) as stopped:
        await beating.run()
    assert (stopped.value.code, beating.stopped) == (EXIT_IDENTITY_TAKEN, True)


async def test_beat_processes_that_end_one_after_the_other_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    beating = Mortal(monkeypatch, 100, *[1] * (SUCCESSORS_MAX + 1))
    with pytest.raises(HeartStopped) as stopped:
        await beating.run()
    assert (stopped.value.code, beating.codes) == (1, [])


async def test_beat_processes_that_end_now_and_then_always_have_a_successor(monkeypatch: pytest.MonkeyPatch) -> None:
    often = 4 * SUCCESSORS_MAX
    beating = Mortal(monkeypatch, SUCCESSORS_MS // SUCCESSORS_MAX, *[1] * often, EXIT_IDENTITY_TAKEN)
    with pytest.raises(HeartStopped) as stopped:
        await beating.run()
    assert stopped.value.code == EXIT_IDENTITY_TAKEN
