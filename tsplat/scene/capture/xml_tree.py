"""Reads XML files as trees of elements; document types, entities, namespaces and external references are not
supported."""

import dataclasses
import xml.parsers.expat
from collections.abc import Iterator
from pathlib import Path

from ...errors import FileError
from ...support.reading import check_memory, read_file

BYTES_MAX = 1 << 28
DEPTH_MAX = 64

ELEMENT_BYTES = 1200
"""Approximate memory per element in bytes."""


@dataclasses.dataclass(slots=True)
class Element:
    """An element of an XML file; `text` is its text before and between its children."""

    tag: str
    attributes: dict[str, str]
    children: list["Element"]
    text: str = ""

    def find(self, *tags: str) -> "Element | None":
        """Returns the first element at a path of tags below this one; None if there is none."""
        element: Element | None = self
        for tag in tags:
            element = next((child for child in element.children if child.tag == tag), None) if element else None
        return element

    def all(self, tag: str) -> Iterator["Element"]:
        """Yields the elements with a tag at any depth below this one, in file order."""
        for child in self.children:
            if child.tag == tag:
                yield child
            yield from child.all(tag)


def read_xml(path: Path) -> Element:
    """Reads an XML file. Raises FileError if it is damaged, nested too deeply, or declares a document type."""
    content = read_file(path, BYTES_MAX)
    check_memory(str(path), len(content) + ELEMENT_BYTES * content.count(b"<"), "free some")
    root = Element("", {}, [])
    stack = [root]

    def start(tag: str, attributes: dict[str, str]) -> None:
        if len(stack) > DEPTH_MAX:
            raise FileError(f"{path}: expected elements nested at most {DEPTH_MAX} deep; it is damaged")
        element = Element(tag, attributes, [])
        stack[-1].children.append(element)
        stack.append(element)

    def text(data: str) -> None:
        if not data.isspace():
            stack[-1].text += data

    def refuse(*_: object) -> None:
        raise FileError(f"{path}: declares a document type, which may refer to other files; remove <!DOCTYPE ...>")

    parser = xml.parsers.expat.ParserCreate()
    parser.buffer_text = True
    parser.StartElementHandler = start
    parser.EndElementHandler = lambda _: stack.pop()
    parser.CharacterDataHandler = text
    parser.StartDoctypeDeclHandler = refuse
    try:
        parser.Parse(content, True)
    except (xml.parsers.expat.ExpatError, ValueError, LookupError) as error:
        raise FileError(f"{path}: not a valid XML file ({error})") from error
    return root.children[0]
