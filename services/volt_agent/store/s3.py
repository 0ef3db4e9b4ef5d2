"""Objects in an S3-compatible store, by `obstore`; credentials and endpoint are those of the environment (`AWS_*`).

Nothing here removes what is too old: give the bucket a lifecycle rule of 30 days (`OBJECT_SECONDS_MAX`).
"""

from datetime import timedelta

import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store as Bucket

from volt_agent.store.port import ObjectMissing, StoreUnavailable, checked

REQUEST_SECONDS_MAX = 60
RETRIES_MAX = 3
RETRY_SECONDS_MAX = 30
FAILURES = (BaseError, OSError)
"""Some of what the store says comes as Python's own: no such bucket is a FileNotFoundError."""


class S3Store:
    """Objects of a bucket, below the path of the URL."""

    def __init__(self, url: str) -> None:
        """Nothing is asked of the store yet. Raises StoreUnavailable if the URL or the environment makes no sense."""
        try:
            self._bucket = Bucket.from_url(
                url,
                # Whether it is encrypted is for the endpoint's own URL to say.
                client_options={"timeout": timedelta(seconds=REQUEST_SECONDS_MAX), "allow_http": True},
                retry_config={"max_retries": RETRIES_MAX, "retry_timeout": timedelta(seconds=RETRY_SECONDS_MAX)},
            )
        except (BaseError, ValueError) as error:
            raise StoreUnavailable(f"{url}: {error}") from error

    async def put(self, name: str, data: bytes) -> None:
        try:
            await obstore.put_async(self._bucket, checked(name), data)
        except FAILURES as error:
            raise StoreUnavailable(f"{name} is not stored: {error}") from error

    async def get(self, name: str) -> bytes:
        try:
            result = await obstore.get_async(self._bucket, checked(name))
            return bytes(await result.bytes_async())
        except FileNotFoundError as error:
            raise ObjectMissing(name) from error
        except FAILURES as error:
            raise StoreUnavailable(f"{name} cannot be read: {error}") from error

    async def names(self, prefix: str) -> frozenset[str]:
        try:
            pages = [page async for page in obstore.list(self._bucket, prefix=checked(prefix))]
        except FAILURES as error:
            raise StoreUnavailable(f"{prefix} cannot be listed: {error}") from error
        return frozenset(found["path"] for page in pages for found in page)

    async def delete(self, name: str) -> None:
        try:
            await obstore.delete_async(self._bucket, checked(name))
        except FileNotFoundError:
            return
        except FAILURES as error:
            raise StoreUnavailable(f"{name} is not removed: {error}") from error

    async def close(self) -> None:
        """Its connections are the library's own."""
