"""Subject filters, as NATS matches them."""

from functools import lru_cache

MATCHES_KEPT_MAX = 1 << 16


@lru_cache(maxsize=MATCHES_KEPT_MAX)
def matches(subject: str, pattern: str) -> bool:
    """Whether the filter `pattern` lets `subject` through."""
    tokens, wanted = subject.split("."), pattern.split(".")
    if wanted[-1] == ">":
        return len(tokens) >= len(wanted) and _all_match(tokens, wanted[:-1])
    return len(tokens) == len(wanted) and _all_match(tokens, wanted)


def _all_match(tokens: list[str], wanted: list[str]) -> bool:
    return all(pattern in ("*", token) for token, pattern in zip(tokens, wanted, strict=False))
