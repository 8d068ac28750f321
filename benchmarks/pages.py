"""Generated tables in pages of the documentation."""

from pathlib import Path

BEGIN, END = "<!-- tables -->", "<!-- end of tables -->"


def write_tables(page: Path, tables: str) -> None:
    """Replaces the tables of a page between the markers BEGIN and END."""
    before, rest = page.read_text().split(BEGIN)
    _, after = rest.split(END)
    page.write_text(f"{before}{BEGIN}\n\n{tables}\n{END}{after}")
