"""HTML from untrusted values: everything is escaped unless it is :class:`Html` already."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping

PLACEHOLDER = re.compile(r"\{\{(\w+)\}\}")
"""What :func:`fill` replaces in a template."""

CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufdd0-\ufdef\ufffe\uffff]")
"""Characters that HTML does not allow."""

UNDECODABLE = re.compile("[\udc80-\udcff]")
"""How Python represents bytes of file names that are not UTF-8."""

VOID = ("br", "img", "input")


class Html(str):
    """Text that is HTML already and is inserted into a page as it is."""

    __slots__ = ()


def escape(value: object) -> Html:
    """Returns a value as HTML text, also inside quoted attributes. :class:`Html` is returned as it is.

    Characters that HTML does not allow become U+FFFD. Bytes of file names that are not UTF-8 are shown as ``\\xNN``.
    """
    if isinstance(value, Html):
        return value
    text = UNDECODABLE.sub(lambda match: f"\\x{ord(match[0]) - 0xDC00:02x}", str(value))
    text = text.encode("utf-8", "replace").decode()
    return Html(html.escape(CONTROL.sub("\ufffd", text)))


def element(tag: str, *children: object, **attributes: object) -> Html:
    """Returns an element with escaped children and attribute values.

    Args:
        tag: Name of the element.
        children: Contents; None is left out.
        attributes: An underscore at the end of a name is removed, and others become hyphens: ``class_``,
            ``data_value``. None and False leave an attribute out; True is an attribute without a value.
    """
    given = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items()}
    parts = [
        f" {name}" if value is True else f' {name}="{escape(value)}"'
        for name, value in given.items()
        if value is not None and value is not False
    ]
    start = f"<{tag}{''.join(parts)}>"
    return Html(start) if tag in VOID else Html(f"{start}{join(children)}</{tag}>")


def join(parts: Iterable[object]) -> Html:
    """Concatenates values, each escaped; None is left out."""
    return Html("".join(escape(part) for part in parts if part is not None))


def fill(template: str, values: Mapping[str, object]) -> Html:
    """Replaces every ``{{name}}`` of a template by the escaped value of that name, in one pass.

    Raises:
        KeyError: The template names a value that is not given.
    """
    return Html(PLACEHOLDER.sub(lambda match: escape(values[match[1]]), template))
