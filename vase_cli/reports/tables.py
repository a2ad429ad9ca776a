"""One table, for a terminal and for a pipe."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vase_cli.reports.characters import harmless

if TYPE_CHECKING:
    import rich.table


@dataclass(frozen=True)
class Table:
    """Cells under headings."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]  # each with a cell for each heading
    title: str = ""  # a line above; none if empty
    notes: Sequence[str] = ()  # lines below
    left: int = 1  # number of first columns that hold text; the others hold numbers, aligned to the right
    whole: int = 0  # number of first columns that never break on a narrow terminal

    def lines(self) -> list[str]:
        """The table as plain text, columns two blanks apart."""
        columns = []
        for place, cells in enumerate(zip(self.headings, *self.rows, strict=True)):
            align, width = str.ljust if place < self.left else str.rjust, max(map(len, cells))
            columns.append([align(cell, width) for cell in cells])
        lines = ["  ".join(row).rstrip() for row in zip(*columns, strict=True)]
        return [*filter(None, [self.title]), *lines, *self.notes]

    def rich(self) -> "rich.table.Table":
        """The table for a terminal."""
        from rich.box import SIMPLE_HEAD
        from rich.table import Table
        from rich.text import Text

        # Text, as a name in square brackets would be taken for markup.
        title = Text(harmless(self.title)) if self.title else None
        caption = Text(harmless("\n".join(self.notes))) if self.notes else None
        table = Table(title=title, caption=caption, caption_justify="left", box=SIMPLE_HEAD, padding=0)
        for column, heading in enumerate(self.headings):
            whole = column < self.whole
            table.add_column(harmless(heading), no_wrap=whole, overflow="ellipsis" if whole else "fold")
            table.columns[column].justify = "left" if column < self.left else "right"
        for row in self.rows:
            table.add_row(*(Text(harmless(cell)) for cell in row))
        return table
