"""Opening an account on the bus."""

import asyncio
import secrets

from volt.contracts.errors import Refused, Unavailable
from volt.contracts.ids import digest, key_sha256
from volt.contracts.jobs import AccountOpened, CommandRejected, OpenAccount
from volt.contracts.log import decode_event
from volt.contracts.messages import encode
from volt.contracts.streams import LOG
from volt.contracts.subjects import command_account, log_account
from volt.runtime.ports import Bus

API_KEY_BYTES = 24
ACCOUNT_ID_BYTES = 4
ANSWER_SECONDS_MAX = 15.0


def new_api_key() -> str:
    """A key for the HTTP interface; only its SHA-256 ever leaves this process."""
    return "vk_" + secrets.token_urlsafe(API_KEY_BYTES)


def new_account_id() -> str:
    """An account id that nobody else has."""
    return "a" + secrets.token_hex(ACCOUNT_ID_BYTES)


async def open_account(bus: Bus, account: str, api_key: str) -> None:
    """Opens the account and returns when it exists; opening it again with the same key changes nothing.

    Raises Refused if another key opened it, Unavailable if nobody answers within `ANSWER_SECONDS_MAX`.
    """
    secret = key_sha256(api_key)
    command = OpenAccount(account=account, request_id=f"open-{digest(secret.encode())}", key_sha256=secret)
    command_seq = await bus.publish(command_account(account), encode(command))
    try:
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            await _answered(bus, command, command_seq)
    except TimeoutError as error:
        raise Unavailable(f"account {account} was not opened within {ANSWER_SECONDS_MAX:.0f} s") from error


async def _answered(bus: Bus, command: OpenAccount, command_seq: int) -> None:
    async for batch in bus.read(LOG.name, [log_account(command.account)]):
        for record in batch.records:
            match decode_event(record.data):
                case AccountOpened(key_sha256=key) if key == command.key_sha256:
                    return
                case CommandRejected(command_seq=seq, reason=reason) if seq == command_seq:
                    raise Refused(reason)
                case _:
                    continue
