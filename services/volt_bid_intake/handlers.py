"""Commands from outside. One durable keeps their order, so that an account opens before it asks."""

from faststream.nats import NatsMessage

from volt.contracts.subjects import ACCOUNT_COMMANDS, BID_COMMANDS, JOB_COMMANDS
from volt.runtime.broker import answer, durable
from volt.runtime.host import Host, Task
from volt_bid_intake.domain import State


def attach(host: Host[State]) -> tuple[Task, ...]:
    """Subscribes to the commands that bid-intake answers."""

    @host.broker.subscriber(**durable("bid-intake", [ACCOUNT_COMMANDS, JOB_COMMANDS, BID_COMMANDS]))
    async def on_command(message: NatsMessage) -> None:
        await answer(host.engine, host.bus, message)

    return ()
