"""Markdown pages."""

import re


def python_blocks(page):
    """Returns the Python code blocks of a page."""
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
