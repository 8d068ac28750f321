"""Summary of a capture for `tsplat info`."""

import collections
import shlex
from pathlib import Path
from typing import Any

from ..scene import read_capture


def summarize_capture(folder: Path) -> dict[str, Any]:
    """Reads a capture with the defaults of `tsplat train`, and returns its summary as JSON types.

    Raises:
        FileError, UnsupportedError, ArgumentError, MissingExtraError: As :func:`tsplat.scene.read_capture`.
    """
    capture = read_capture(folder)
    views = (*capture.train, *capture.test)
    sizes = collections.Counter((view.width, view.height) for view in views)
    return {
        "capture": str(folder),
        "photographs": len(views),
        "held_out": len(capture.test),
        "sizes": [{"width": width, "height": height, "count": n} for (width, height), n in sizes.most_common()],
        "cameras": len({view.camera_id for view in views}),
        "camera_models": sorted({view.camera.model for view in views}),
        "points": 0 if capture.random_points else len(capture.points),
        "mask_files": sum(len(view.files) > 1 for view in views),
        "notes": list(capture.notes),
        "next": f"tsplat train {shlex.quote(str(folder))} --out RUN",
    }


def capture_lines(summary: dict[str, Any]) -> list[str]:
    """Returns a summary of :func:`summarize_capture` as lines of text."""
    sizes = ", ".join(f"{size['count']:,} of {size['width']}×{size['height']}" for size in summary["sizes"][:3])
    more = len(summary["sizes"]) - 3
    return [
        f"capture      {summary['capture']}",
        f"photographs  {summary['photographs']:,}, of which {summary['held_out']:,} are held out",
        f"sizes        {sizes} pixels{f', and {more:,} more' if more > 0 else ''}, as trained",
        f"cameras      {summary['cameras']:,} ({', '.join(summary['camera_models'])})",
        f"points       {summary['points']:,}",
        f"mask files   {summary['mask_files']:,}",
        *(f"note         {note}" for note in summary["notes"]),
        f"next         {summary['next']}",
    ]
