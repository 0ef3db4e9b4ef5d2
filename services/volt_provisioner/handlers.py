"""Reports of agents. One durable keeps the order of each node's own."""

from faststream.nats import NatsMessage

from volt.contracts.subjects import REPORTS
from volt.runtime.broker import answer, durable
from volt.runtime.host import Host, Task
from volt_provisioner.domain import State


def attach(host: Host[State]) -> tuple[Task, ...]:
    """Subscribes to the reports of every agent."""

    @host.broker.subscriber(**durable("provisioner", [REPORTS]))
    async def on_report(message: NatsMessage) -> None:
        await answer(host.engine, host.bus, message)

    return ()
