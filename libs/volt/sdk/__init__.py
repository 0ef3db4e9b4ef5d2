"""The client library: everything that the gateway offers, blocking (`Client`) or not (`AsyncClient`).

    calls     what each call asks and how its answer reads; knows no connection
    streams   the same for what never ends: server-sent events, and where to go on after a break
    retries   what is tried again, how often, and how long apart
    advice    what is asked for by who takes up an alternative
    blocking  the calls over a blocking connection
    awaited   the calls over an asynchronous one

Both raise the errors of `volt.contracts.errors`.
"""

from volt.sdk.advice import with_alternative
from volt.sdk.awaited import AsyncClient
from volt.sdk.blocking import Client
from volt.sdk.calls import GatewayUnreachable

__all__ = ["AsyncClient", "Client", "GatewayUnreachable", "with_alternative"]
