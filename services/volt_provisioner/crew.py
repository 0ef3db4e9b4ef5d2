"""Who is in a generation: the seats of one that is open, the crew of one whose membership is closed, its growth.

    seat   Vacant ──MembersWanted──▶ Sought ──gang──▶ Offered ──MemberJoined──▶ Preparing ──MemberPrepared──▶ Prepared
             ▲                                                                      │                            │
             └──────────────────────────────────MemberLost──────────────────────────┴────────────────────────────┘

The seats of a growth are above the ranks of the running generation, for the next one. They go the same way, but that
one which is dropped is no seat any more, and one that is given up while it is sought is forgone:

    seat   (none) ──MembersWanted──▶ Sought ──GrowthGivenUp──▶ Forgone ──gang──▶ Offered ──GrowthGivenUp──▶ (none)

A member that is prepared and says so again, with another address or port, is prepared there: its agent began again.
A mapping in here is never changed in place: the next value gets another.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from volt.contracts.clusters import BeatId, Exit, LossCause, Member
from volt.contracts.ids import LeaseId
from volt.contracts.nodes import Thaw
from volt_provisioner.progress import Progress


@dataclass(frozen=True)
class Vacant:
    """A rank without a member; the market is yet to be asked. `replaces` is the lost lease that left it."""

    replaces: LeaseId


@dataclass(frozen=True)
class Sought:
    """The market was asked for a member."""

    attempt: int


@dataclass(frozen=True)
class Offered:
    """The market granted a member, which is yet to join."""

    member: Member
    attempt: int


@dataclass(frozen=True)
class Preparing:
    """The member has been told to prepare."""

    member: Member
    prepare_by_ms: int


@dataclass(frozen=True)
class Prepared:
    """The member can start; its peers reach it at this address, rank 0 at this port."""

    member: Member
    address: str
    port: int
    beat: BeatId | None = None
    """Of its node, acknowledged before: it has not been fenced from then until it was prepared."""


Seat = Vacant | Sought | Offered | Preparing | Prepared


@dataclass(frozen=True)
class Forgone:
    """Nobody wants the rank any more, but the market was asked and may still answer."""

    attempt: int


NewSeat = Sought | Offered | Preparing | Prepared | Forgone


@dataclass(frozen=True)
class Growth:
    """By whom a running cluster is to grow; its members prepare for the next generation."""

    seats: Mapping[int, NewSeat] = field(default_factory=dict)
    """By rank, in order."""
    failures: Mapping[int, int] = field(default_factory=dict)
    """Members dropped by rank, for another reason than a lost node."""
    cause: str = ""
    """Why the last of them was dropped."""
    prepared_ms: int | None = None
    """Since when some have been prepared; None while none is."""

    @property
    def members(self) -> dict[LeaseId, Member]:
        """Those who hold a lease, those included that are yet to join."""
        return {
            seat.member.lease: seat.member
            for seat in self.seats.values()
            if isinstance(seat, Offered | Preparing | Prepared)
        }

    @property
    def prepared(self) -> tuple[Prepared, ...]:
        """Those who can start, in the order of their ranks."""
        return tuple(seat for seat in self.seats.values() if isinstance(seat, Prepared))

    def with_seats(self, seats: Mapping[int, NewSeat]) -> "Growth":
        """With these seats, in place of those that it has of their ranks."""
        return self._seated({**self.seats, **seats})

    def without_ranks(self, ranks: Collection[int]) -> "Growth":
        return self._seated({rank: seat for rank, seat in self.seats.items() if rank not in ranks})

    def _seated(self, seats: Mapping[int, NewSeat]) -> "Growth":
        has_prepared = any(isinstance(seat, Prepared) for seat in seats.values())
        return replace(self, seats=dict(sorted(seats.items())), prepared_ms=self.prepared_ms if has_prepared else None)


@dataclass(frozen=True)
class Setback:
    """What a rank has been through in the open generation: vacant first at `since_ms`, for the cause told."""

    since_ms: int
    cause: str
    failures: int = 0
    """Members lost in this generation, for another reason than a lost node."""


@dataclass(frozen=True)
class Loss:
    """A member that a generation lost after its membership was closed."""

    member: Member
    cause: LossCause
    detail: str
    lingers: bool = False
    """Whether its node lives and is yet to end what it runs: until then nothing else may start."""


@dataclass(frozen=True)
class Crew:
    """The members of a closed generation and what became of them."""

    members: Mapping[LeaseId, Member]
    """Those that are not lost."""
    started: frozenset[LeaseId] = frozenset()
    ended: Mapping[LeaseId, tuple[Exit, ...]] = field(default_factory=dict)
    lost: tuple[Loss, ...] = ()
    trouble: LeaseId | None = None
    """The member whose loss or failing exit came first."""
    progress: Progress = field(default_factory=lambda: Progress(0))
    thaws: Mapping[LeaseId, Thaw] = field(default_factory=dict)
    """From which freeze a lease may go on, the last one."""

    @classmethod
    def of(cls, members: Mapping[LeaseId, Member]) -> "Crew":
        """All the members of a generation, at the closing of its membership."""
        return cls(members, progress=Progress(len(members)))

    def with_started(self, lease: LeaseId) -> "Crew":
        return replace(self, started=self.started | {lease})

    def with_thaw(self, lease: LeaseId, thaw: Thaw) -> "Crew":
        return replace(self, thaws={**self.thaws, lease: thaw})

    def with_ended(self, lease: LeaseId, exits: tuple[Exit, ...], *, failed: bool) -> "Crew":
        trouble = lease if failed and self.trouble is None else self.trouble
        return replace(self, ended={**self.ended, lease: exits}, trouble=trouble)

    def with_gone(self, lease: LeaseId) -> "Crew":
        """Nothing runs any more of one that is lost."""
        lost = tuple(replace(loss, lingers=loss.lingers and loss.member.lease != lease) for loss in self.lost)
        return replace(self, lost=lost)

    def without(self, member: Member, cause: LossCause, detail: str) -> "Crew":
        lingers = cause in ("gpu_fault", "drained") and member.lease not in self.ended
        return replace(
            self,
            members={lease: one for lease, one in self.members.items() if lease != member.lease},
            ended={lease: exits for lease, exits in self.ended.items() if lease != member.lease},
            lost=(*self.lost, Loss(member, cause, detail, lingers)),
            trouble=self.trouble or member.lease,
        )
