"""Where the views are in Redis, and how to drop them. The gateway builds them again from the log."""

import asyncio

from redis.asyncio import BlockingConnectionPool, Redis

VIEWS_PREFIX = "volt:view:"
VIEWS_META = VIEWS_PREFIX + "meta"
"""A hash: the shape of the views (`schema`), where in the log they are, and whether they have reached its end."""
REDIS_SECONDS_MAX = 2.0

# One script, so that nobody writes or reads a view between the first key that goes and the last. With a schema to
# spare it drops only views of another one.
_DROP = """
if ARGV[2] ~= '' and redis.call('HGET', KEYS[1], 'schema') == ARGV[2] then return 0 end
local cursor, dropped = '0', 0
repeat
    local found = redis.call('SCAN', cursor, 'MATCH', ARGV[1] .. '*', 'COUNT', 1000)
    cursor = found[1]
    for _, key in ipairs(found[2]) do dropped = dropped + redis.call('UNLINK', key) end
until cursor == '0'
return dropped
"""


async def drop_views(redis: Redis, spare_schema: str = "") -> int:
    """Deletes every view at once and returns how many keys there were. Raises redis.RedisError."""
    return int(await redis.register_script(_DROP)(keys=[VIEWS_META], args=[VIEWS_PREFIX, spare_schema]))


async def drop_views_at(redis_url: str) -> int:
    """As `drop_views`, for whoever has no connection. Raises redis.RedisError, TimeoutError."""
    async with views_at(redis_url, connections_max=1) as redis, asyncio.timeout(REDIS_SECONDS_MAX):
        return await drop_views(redis)


def views_at(redis_url: str, connections_max: int) -> Redis:
    """A client with a bounded pool, and without time limits of its own: each call is to have one around it.

    Where redis-py keeps the time it uses `asyncio.wait_for`, which on Python 3.11 can lose a cancellation.
    """
    pool = BlockingConnectionPool.from_url(
        redis_url,
        max_connections=connections_max,
        timeout=REDIS_SECONDS_MAX,
        socket_timeout=None,
        socket_connect_timeout=REDIS_SECONDS_MAX,
    )
    return Redis.from_pool(pool)
