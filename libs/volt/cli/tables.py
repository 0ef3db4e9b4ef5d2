"""Tables as the commands print them: plain columns, which a pipe can read too."""

from collections.abc import Iterable, Sequence

from rich.table import Table
from rich.text import Text

NAMES = frozenset({"job", "lease", "node", "gpu", "state"})
"""Columns that are copied from the screen: they are never folded."""


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, right: frozenset[str] = frozenset()) -> Table:
    """Columns with a header; those named in `right` are aligned right, as numbers are."""
    made = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        name = column in NAMES
        made.add_column(column, justify="right" if column in right else "left", overflow="fold", no_wrap=name)
    for row in rows:
        made.add_row(*(Text(cell) for cell in row))
    return made
