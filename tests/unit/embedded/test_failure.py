"""An error that happens elsewhere ends a block."""

import asyncio

import pytest

from volt.embedded.failure import FailureScope


class Broken(Exception):
    """What happened elsewhere."""


async def _block(scope: FailureScope, failure: Exception | None = None) -> None:
    try:
        if failure is not None:
            asyncio.get_running_loop().call_soon(scope.fail, failure)
        await asyncio.get_running_loop().create_future()
    except BaseException as error:
        scope.leave()
        scope.raise_failure(error)
        raise


async def test_a_failure_elsewhere_is_raised_from_the_block() -> None:
    with pytest.raises(Broken):
        await _block(FailureScope(), Broken())
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_the_first_failure_is_the_one_that_counts() -> None:
    scope, first = FailureScope(), Broken("first")
    asyncio.get_running_loop().call_soon(scope.fail, first)
    with pytest.raises(Broken, match="first"):
        await _block(scope, Broken("second"))


async def test_a_cancellation_from_outside_stays_one() -> None:
    async def guarded() -> None:
        scope = FailureScope()
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().call_soon(task.cancel)
        await _block(scope, Broken())

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(guarded())


async def test_what_fails_once_the_block_has_ended_is_ignored() -> None:
    scope = FailureScope()
    scope.leave()
    scope.fail(Broken())
    scope.raise_failure(None)
    await asyncio.sleep(0)


async def test_an_error_of_the_block_itself_is_kept_as_the_cause() -> None:
    scope, own = FailureScope(), ValueError("the bus is away")
    scope.fail(Broken())
    with pytest.raises(asyncio.CancelledError):
        await asyncio.sleep(0)
    with pytest.raises(Broken) as caught:
        scope.raise_failure(own)
    assert caught.value.__cause__ is own
