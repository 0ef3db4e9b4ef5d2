"""Everything that Redis holds, to compare."""

from redis.asyncio import Redis

from volt.runtime.views import VIEWS_META


async def dump(redis: Redis, *, but: str = VIEWS_META) -> dict[str, str]:
    """Every key with its value, as text; the one that says where the views are left out, unless asked for."""
    found: dict[str, str] = {}
    for key in await redis.keys("*"):
        name = key.decode() if isinstance(key, bytes) else key
        kind = await redis.type(name)
        if name == but:
            continue
        if kind == b"string":
            found[name] = repr(await redis.get(name))
        elif kind == b"hash":
            found[name] = repr(sorted((await redis.hgetall(name)).items()))
        else:
            found[name] = repr(await redis.zrange(name, 0, -1, withscores=True))
    return found
