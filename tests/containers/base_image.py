"""A base image made of this machine's own Python, for where no registry can be reached.

What goes in is what `python:3.11-slim` has and the Dockerfile uses: the interpreter with its standard library and pip,
the shared libraries that these load, a shell, two tools, and the certificates that this machine trusts.
"""

import io
import re
import shutil
import ssl
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

LDD_SECONDS_MAX = 30.0
PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
STDLIB = f"usr/local/lib/{PYTHON}"
LIBRARIES = "usr/local/lib"
CERTIFICATES = "etc/ssl/certs/ca-certificates.crt"
TOOLS = ("sh", "mkdir", "chown")
# What any Linux has, so that wheels may take it for granted (PEP 600).
WHEELS_EXPECT = ("libdl.so.2", "libgcc_s.so.1", "libpthread.so.0", "librt.so.1", "libstdc++.so.6", "libutil.so.1")
# Large, of no use here, or the mark by which a system's own Python tells pip to keep away.
LEFT_OUT = re.compile(
    r"test|tests|idlelib|tkinter|turtledemo|lib2to3|pydoc_data|ensurepip|site-packages|dist-packages"
    r"|config-.*|_tkinter\..*|_test.*\.so|EXTERNALLY-MANAGED"
)

ENVIRONMENT = {
    "LD_LIBRARY_PATH": f"/{LIBRARIES}",
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "PIP_CERT": f"/{CERTIFICATES}",
    "SSL_CERT_FILE": f"/{CERTIFICATES}",
}


class NotPossible(Exception):
    """This machine lacks something that the image is made of; the message says what."""


def write_base_image(path: Path) -> None:
    """Writes the root folder of the image as a tar file. Raises NotPossible."""
    stdlib = Path(sysconfig.get_path("stdlib"))
    interpreter = _interpreter()
    tools = [_tool(name) for name in TOOLS]
    with tarfile.open(path, "w") as tar:
        _add(tar, interpreter, f"usr/local/bin/{PYTHON}")
        _link(tar, "usr/local/bin/python", PYTHON)
        _add(tar, stdlib, STDLIB)
        _add_pip(tar)
        for tool in tools:
            _add(tar, tool, f"usr/bin/{tool.name}")
        _link(tar, "bin/sh", "/usr/bin/sh")
        for library, target in _libraries([interpreter, *tools, *stdlib.glob("lib-dynload/*.so")]):
            _add(tar, library, target)
        _add(tar, _certificates(), CERTIFICATES)
        _add_bytes(tar, "etc/passwd", b"root:x:0:0::/:/bin/sh\n")
        _add_bytes(tar, "etc/group", b"root:x:0:\n")
        _add_folder(tar, "tmp", 0o1777)
        _add_folder(tar, "var/lib", 0o755)


def _interpreter() -> Path:
    """The interpreter itself, when this one is a virtual environment's."""
    path = Path(sys.base_prefix) / "bin" / PYTHON
    if not path.exists():
        raise NotPossible(f"there is no {path}")
    return path.resolve()


def _tool(name: str) -> Path:
    found = shutil.which(name)
    if found is None:
        raise NotPossible(f"there is no {name} on PATH")
    return Path(found)


def _certificates() -> Path:
    found = ssl.get_default_verify_paths().cafile
    if found is None:
        raise NotPossible("OpenSSL has no file of certificates (Debian's package ca-certificates)")
    return Path(found)


def _add_pip(tar: tarfile.TarFile) -> None:
    """pip, out of the wheel that `python -m venv` installs it from.

    It goes beside the standard library: where else a Python looks for packages, Debian's has its own mind about.
    """
    bundled = sysconfig.get_path("stdlib") + "/ensurepip/_bundled"
    folders = [Path(folder) for folder in (sysconfig.get_config_var("WHEEL_PKG_DIR"), bundled) if folder]
    wheel = next((wheel for folder in folders for wheel in folder.glob("pip-*.whl")), None)
    if wheel is None:
        raise NotPossible("this Python has no wheel of pip (Debian's package python3-venv)")
    with zipfile.ZipFile(wheel) as files:
        for name in files.namelist():
            _add_bytes(tar, f"{STDLIB}/{name}", files.read(name))


def _libraries(binaries: Iterable[Path]) -> Iterator[tuple[Path, str]]:
    """Each shared library that the binaries load, or that a wheel may load, and where in the image it goes.

    They lie in one folder, on LD_LIBRARY_PATH; only the loader has to be where the binaries say.
    """
    done = subprocess.run(["ldd", *binaries], capture_output=True, text=True, timeout=LDD_SECONDS_MAX, check=False)
    found = {Path(path) for path in re.findall(r"(/\S+) \(0x", done.stdout)}
    libc = next((path for path in found if path.name.startswith("libc.so")), None)
    if libc is None:
        raise NotPossible(f"ldd names no libc: {done.stderr.strip()}")
    found |= {library for name in WHEELS_EXPECT if (library := libc.with_name(name)).exists()}
    for library in sorted(found):
        is_loader = library.name.startswith("ld-")
        yield library.resolve(), str(library)[1:] if is_loader else f"{LIBRARIES}/{library.name}"


def _add(tar: tarfile.TarFile, path: Path, name: str) -> None:
    tar.add(path.resolve(), name, filter=_kept)


def _kept(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    if LEFT_OUT.fullmatch(Path(member.name).name):
        return None
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    return member


def _add_bytes(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))


def _add_folder(tar: tarfile.TarFile, name: str, mode: int) -> None:
    member = tarfile.TarInfo(name)
    member.type = tarfile.DIRTYPE
    member.mode = mode
    tar.addfile(member)


def _link(tar: tarfile.TarFile, name: str, target: str) -> None:
    member = tarfile.TarInfo(name)
    member.type = tarfile.SYMTYPE
    member.linkname = target
    tar.addfile(member)
