"""A stand-in for the NVIDIA driver's library, built once, and the file that says what it tells."""

import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("nvml_stand_in.c")


class Driver:
    """Cards on a machine. `environment` is for the process that is to see them."""

    def __init__(self, folder: Path, cards: int = 2) -> None:
        self._script = folder / "driver.txt"
        self._script.write_text("")
        self.environment = {
            "LD_LIBRARY_PATH": str(library_folder(folder)),
            "CARDS": str(cards),
            "NVML_STAND_IN": str(self._script),
        }

    def uuid(self, card: int) -> str:
        return f"GPU-0000000{card}-aaaa-bbbb-cccc-dddddddddddd"

    def tells(self, card: int, **numbers: int) -> None:
        """From now on, besides what it has told."""
        for what, number in numbers.items():
            self._add(f"set {card} {what} {number}")

    def xid(self, card: int, code: int) -> None:
        self._add(f"xid {card} {code}")

    def hides(self, card: int) -> None:
        self._add(f"hidden {card}")

    def loses(self, card: int) -> None:
        self._add(f"lost {card}")

    def is_repaired(self) -> None:
        """All cards are there and well."""
        self._script.write_text("")

    def _add(self, line: str) -> None:
        with self._script.open("a") as out:
            out.write(line + "\n")


def library_folder(folder: Path) -> Path:
    """Where the library is, once it is built there. Skips the test without a compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler to build the driver's stand-in with")
    library = folder / "libnvidia-ml.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(SOURCE)], check=True)
    return folder
