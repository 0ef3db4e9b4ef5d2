"""How a process says that it can be used."""

import os


def say_ready(ready_fd: int | None) -> None:
    """Tells whoever started this process that it can be used."""
    if ready_fd is not None:
        os.write(ready_fd, b"ready\n")
        os.close(ready_fd)
