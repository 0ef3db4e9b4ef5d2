"""VOLT: GPUs of many independent operators, as clusters in seconds.

    from volt import Client

    with Client.from_context("~/.local/share/volt/context.json") as client:
        job = client.jobs.create(gpu="h100", count=8, command=["python", "train.py"])
        for output in client.jobs.logs(job.id):
            for line in output.lines:
                print(line.text)

`Client` and `AsyncClient` are loaded when they are first asked for: the services import this package too, and need
neither of them.
"""

import importlib
from typing import TYPE_CHECKING

from volt.contracts import errors

if TYPE_CHECKING:
    from volt.sdk import AsyncClient, Client

__all__ = ["AsyncClient", "Client", "errors"]


def __getattr__(name: str) -> object:
    if name in ("AsyncClient", "Client"):
        return getattr(importlib.import_module("volt.sdk"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
