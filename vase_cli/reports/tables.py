"""One table, for a terminal and for a pipe."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import rich.table


@dataclass(frozen=True)
class Table:
    """Cells under headings.

    Attributes:
        headings, rows: every row has a cell for each heading.
        title: a line above; none if empty.
        notes: lines below.
        left: how many of the first columns hold text; the others hold numbers, aligned to the right.
        whole: how many of the first columns never break on a narrow terminal.
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    notes: Sequence[str] = ()
    left: int = 1
    whole: int = 0

    def lines(self) -> list[str]:
        """The table as plain text, columns two blanks apart."""
        cells = [list(self.headings), *map(list, self.rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = [self.title] if self.title else []
        for row in cells:
            aligned = (
                cell.ljust(width) if number < self.left else cell.rjust(width)
                for number, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
            lines.append("  ".join(aligned).rstrip())
        return [*lines, *self.notes]

    def rich(self) -> "rich.table.Table":
        """The table for a terminal."""
        from rich.box import SIMPLE_HEAD
        from rich.table import Table
        from rich.text import Text

        # Text, as a name in square brackets would be taken for markup.
        title, caption = Text(self.title) if self.title else None, Text("\n".join(self.notes)) if self.notes else None
        table = Table(title=title, caption=caption, caption_justify="left", box=SIMPLE_HEAD, padding=0)
        for column, heading in enumerate(self.headings):
            table.add_column(
                heading,
                justify="left" if column < self.left else "right",
                no_wrap=column < self.whole,
                overflow="ellipsis" if column < self.whole else "fold",
            )
        for row in self.rows:
            table.add_row(*map(Text, row))
        return table
