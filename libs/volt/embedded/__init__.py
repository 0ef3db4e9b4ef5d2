"""The control plane on one machine: nats-server, Valkey and the services as child processes of this one."""

from volt.embedded.child import Child
from volt.embedded.context import Context, read_context, write_context
from volt.embedded.errors import (
    BinaryMissing,
    ChildFailed,
    ChildKeepsDying,
    ChildNotReady,
    ContextMissing,
    DataFolderBusy,
    DataFolderInUse,
    EmbeddedError,
    FileUnreadable,
    NatsNotDurable,
    NoFreePort,
)
from volt.embedded.service import Limits, Service
from volt.embedded.supervisor import SERVICES, ControlPlane
from volt.sdk.context import data_folder

__all__ = [
    "SERVICES",
    "BinaryMissing",
    "Child",
    "ChildFailed",
    "ChildKeepsDying",
    "ChildNotReady",
    "Context",
    "ContextMissing",
    "ControlPlane",
    "DataFolderBusy",
    "DataFolderInUse",
    "EmbeddedError",
    "FileUnreadable",
    "Limits",
    "NatsNotDurable",
    "NoFreePort",
    "Service",
    "data_folder",
    "read_context",
    "write_context",
]
