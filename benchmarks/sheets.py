"""Draws images with titles in a grid, for pages of the documentation."""

from collections.abc import Iterable

from matplotlib.font_manager import findfont
from PIL import Image, ImageDraw, ImageFont

ENLARGED, GAP, TITLE = 2, 12, 32
"""Factor by which images are enlarged, pixels between columns, and height of the title above an image."""


def draw_sheet(cells: Iterable[tuple[int, int, str, Image.Image]], enlarged: int = ENLARGED) -> Image.Image:
    """Draws enlarged images of equal size, given their columns, rows and titles."""
    cells = list(cells)
    width, height = (enlarged * size for size in cells[0][3].size)
    n_columns, n_rows = 1 + max(cell[0] for cell in cells), 1 + max(cell[1] for cell in cells)
    sheet = Image.new("RGB", (n_columns * (width + GAP) - GAP, n_rows * (height + TITLE)), "white")
    pen, font = ImageDraw.Draw(sheet), ImageFont.truetype(findfont("DejaVu Sans"), TITLE // 2)
    for column, row, name, image in cells:
        x, y = column * (width + GAP), row * (height + TITLE)
        pen.text((x + 2, y + TITLE // 2), name, "black", font, anchor="lm")
        sheet.paste(image.resize((width, height), Image.Resampling.LANCZOS), (x, y + TITLE))
    return sheet
