"""Fills HTML templates with untrusted values: everything is escaped unless it is :class:`Html`."""

import html
import re
from collections.abc import Mapping
from typing import Any

TOKEN = re.compile(r"\{\{([#^])(\w+)\}\}(.*?)\{\{/\2\}\}|\{\{(\w+)\}\}", re.DOTALL)
"""A section or a placeholder of a template."""

CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufdd0-\ufdef\ufffe\uffff]")
"""Characters that HTML does not allow."""

UNDECODABLE = re.compile("[\udc80-\udcff]")
"""Surrogates by which Python represents bytes of file names that are not UTF-8."""


class Html(str):
    """HTML text, which is inserted into a page without escaping."""

    __slots__ = ()


def escape(value: object) -> Html:
    """Escapes a value as HTML text, which may be inside quoted attributes. :class:`Html` is returned unchanged.

    Characters that HTML does not allow become U+FFFD. Bytes of file names that are not UTF-8 are shown as ``\\xNN``.
    """
    if isinstance(value, Html):
        return value
    text = UNDECODABLE.sub(lambda match: f"\\x{ord(match[0]) - 0xDC00:02x}", str(value))
    text = text.encode("utf-8", "replace").decode()
    return Html(html.escape(CONTROL.sub("\ufffd", text)))


def fill(template: str, values: Mapping[str, Any]) -> Html:
    """Fills a Mustache template, without partials, in one pass.

    ``{{name}}`` is replaced by the escaped value of that name, or removed if it is None. ``{{#name}}...{{/name}}`` is
    repeated for each mapping in a list, whose values take precedence, or rendered once if the value is a mapping or
    true. ``{{^name}}...{{/name}}`` is rendered if the value is false, empty or None.
    """

    def replace(match: re.Match[str]) -> str:
        kind, section, body, name = match.groups()
        if kind is None:
            return "" if values[name] is None else escape(values[name])
        value = values[section]
        if kind == "#" and isinstance(value, list):
            return "".join(fill(body, {**values, **inner}) for inner in value)
        is_shown = bool(value) == (kind == "#")
        return fill(body, {**values, **value} if isinstance(value, Mapping) else values) if is_shown else ""

    return Html(TOKEN.sub(replace, template))
