"""How a shim is started: compiled beforehand, and with nothing on its path but itself and the standard library."""

import py_compile
import sys
from pathlib import Path

from volt_agent import kernel, shim

MODULES = (kernel, shim)


def shim_command(folder: Path) -> tuple[str, ...]:
    """Compiles the shim into this folder and returns the command that runs it.

    Given its source, the interpreter would compile it anew for every process; and its package would drag in the rest.
    """
    for module in MODULES:
        assert module.__file__ is not None
        compiled = folder.joinpath(*module.__name__.split(".")).with_suffix(".pyc")
        compiled.parent.mkdir(parents=True, exist_ok=True)
        py_compile.compile(module.__file__, str(compiled), doraise=True)
    program = f"import sys; sys.path.insert(0, {str(folder)!r}); from {shim.__name__} import main; sys.exit(main())"
    return (sys.executable, "-I", "-S", "-c", program)
