"""Objects as messages of a JetStream stream of their own, a subject for each; the last one on a subject counts.

The server may be the bus, or better another one beside it (`volt up` starts one): then bulk never makes the log wait.
"""

import msgspec

from volt.contracts.errors import BusUnavailable, Refused
from volt.contracts.streams import CHECKPOINTS
from volt.contracts.subjects import checkpoint_object, checkpoint_objects
from volt.runtime.nats import NatsBus
from volt_agent.store.port import ObjectMissing, StoreUnavailable, checked

PAGES_MAX = 1_000
CONNECT_SECONDS_MAX = 10.0
LISTING_SECONDS_MAX = 30.0

_HEADER_STATUS = "Status"


class _State(msgspec.Struct):
    subjects: dict[str, int] | None = None


class _Info(msgspec.Struct):
    """What the server says of a stream, as far as it is of use."""

    state: _State | None = None
    total: int = 0


class JetStreamStore:
    """Objects on a NATS server."""

    def __init__(self, bus: NatsBus) -> None:
        self._bus = bus

    @classmethod
    async def open(cls, url: str, name: str) -> "JetStreamStore":
        """Connects and makes the stream if it is missing. Raises StoreUnavailable."""
        try:
            bus = await NatsBus.connect(url, name, CONNECT_SECONDS_MAX)
        except BusUnavailable as error:
            raise StoreUnavailable(str(error)) from error
        try:
            await bus.ensure(CHECKPOINTS)
        except BusUnavailable as error:
            await bus.close()
            raise StoreUnavailable(str(error)) from error
        return cls(bus)

    async def put(self, name: str, data: bytes) -> None:
        try:
            await self._bus.publish(checkpoint_object(checked(name)), data)
        except (BusUnavailable, Refused) as error:
            raise StoreUnavailable(f"{name} is not stored: {error}") from error

    async def get(self, name: str) -> bytes:
        subject = f"$JS.API.DIRECT.GET.{CHECKPOINTS.name}.{checkpoint_object(checked(name))}"
        try:
            async with self._bus.bounded(name):
                reply = await self._bus.client.request(subject, b"")
        except BusUnavailable as error:
            raise StoreUnavailable(f"{name} cannot be read: {error}") from error
        status = (reply.headers or {}).get(_HEADER_STATUS)
        if status == "404":
            raise ObjectMissing(name)
        if status is not None:
            raise StoreUnavailable(f"{name} cannot be read: status {status}")
        return reply.data

    async def names(self, prefix: str) -> frozenset[str]:
        subjects: set[str] = set()
        for _ in range(PAGES_MAX):
            page, total = await self._page(checkpoint_objects(checked(prefix)), len(subjects))
            subjects |= page
            if not page or len(subjects) >= total:
                break
        return frozenset(subject.partition(".")[2].replace(".", "/") for subject in subjects)

    async def delete(self, name: str) -> None:
        request = msgspec.json.encode({"filter": checkpoint_object(checked(name))})
        try:
            reply = await self._bus.api(f"STREAM.PURGE.{CHECKPOINTS.name}", request)
        except BusUnavailable as error:
            raise StoreUnavailable(f"{name} is not removed: {error}") from error
        if reply.error is not None:
            raise StoreUnavailable(f"{name} is not removed: {reply.error.description}")

    async def close(self) -> None:
        await self._bus.close()

    async def _page(self, subjects: str, offset: int) -> tuple[frozenset[str], int]:
        request = msgspec.json.encode({"subjects_filter": subjects, "offset": offset})
        try:
            async with self._bus.bounded(subjects, LISTING_SECONDS_MAX):
                reply = await self._bus.client.request(
                    f"$JS.API.STREAM.INFO.{CHECKPOINTS.name}", request, timeout=LISTING_SECONDS_MAX
                )
        except BusUnavailable as error:
            raise StoreUnavailable(f"{subjects} cannot be listed: {error}") from error
        info = msgspec.json.decode(reply.data, type=_Info)
        if info.state is None:
            raise StoreUnavailable(f"{subjects} cannot be listed")
        return frozenset(info.state.subjects or {}), info.total
