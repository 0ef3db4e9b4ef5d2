"""What was answered to which request: a repeated one is told from an impostor under its id."""

from dataclasses import dataclass

from volt.contracts.errors import Reason

ANSWERS_REMEMBERED_MAX = 64


@dataclass(frozen=True)
class Answers:
    """The last answered requests, as their ids with the digests of their bytes, oldest first."""

    requests: tuple[tuple[str, str], ...] = ()

    def with_one(self, request_id: str, request_digest: str) -> "Answers":
        return Answers((*self.requests, (request_id, request_digest))[-ANSWERS_REMEMBERED_MAX:])

    def has(self, request_id: str, request_digest: str) -> bool:
        """Whether this very request was answered."""
        return (request_id, request_digest) in self.requests

    def knows(self, request_id: str) -> bool:
        """Whether some request under this id was answered."""
        return any(known == request_id for known, _ in self.requests)


def reused(request_id: str) -> Reason:
    """The refusal of another request under an id that was used."""
    message = f"request id {request_id} was used for another request; use a fresh one"
    return Reason(code="request_id_reused", message=message, field="request_id", seen=request_id)
