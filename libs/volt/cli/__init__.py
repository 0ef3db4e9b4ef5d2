"""`volt`: the command line. Data goes to stdout, progress to stderr; the exit code tells the class of a failure."""

from volt.cli.main import main

__all__ = ["main"]
