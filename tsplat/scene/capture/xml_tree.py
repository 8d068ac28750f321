"""Reads XML files as trees of elements; document types, entities and external references are not supported."""

from pathlib import Path
from xml.etree.ElementTree import Element, ParseError, TreeBuilder, XMLParser, fromstring

from ...errors import FileError
from ...support.reading import check_memory, read_file

BYTES_MAX = 1 << 28
DEPTH_MAX = 64

ELEMENT_BYTES = 1200
"""Approximate memory per element in bytes."""


class _Builder(TreeBuilder):
    """Builds a tree. Raises ValueError if it is nested too deeply, or for a document type."""

    def __init__(self) -> None:
        super().__init__()
        self._depth = 0

    def start(self, tag: str, attributes: dict[str, str]) -> Element:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise ValueError(f"expected elements nested at most {DEPTH_MAX} deep; it is damaged")
        return super().start(tag, attributes)

    def end(self, tag: str) -> Element:
        self._depth -= 1
        return super().end(tag)

    def doctype(self, *_: object) -> None:
        raise ValueError("declares a document type, which may refer to other files; remove <!DOCTYPE ...>")


def read_xml(path: Path) -> Element:
    """Reads an XML file. Raises FileError if it is damaged, nested too deeply, or declares a document type."""
    content = read_file(path, BYTES_MAX)
    check_memory(str(path), len(content) + ELEMENT_BYTES * content.count(b"<"), "free some")
    try:
        return fromstring(content, XMLParser(target=_Builder()))
    except (ParseError, ValueError, LookupError) as error:
        raise FileError(f"{path}: not a valid XML file ({error})") from error
