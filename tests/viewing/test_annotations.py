"""Annotations of scene pages."""

import json

import pytest

from tsplat.scene import FileError
from tsplat.viewing import Annotation, read_annotations


def test_annotations_are_read(tmp_path):
    path = tmp_path / "annotations.json"
    path.write_text('[{"title": "Lid", "position": [0, 1.5, -2], "text": "hot", "eye": [1, 2, 3]}, '
                    '{"position": [1, 2, 3], "title": "Spout"}]')  # fmt: skip
    first, second = read_annotations(path)
    assert first == Annotation([0, 1.5, -2], "Lid", "hot", [1, 2, 3])
    assert second == Annotation([1, 2, 3], "Spout", "", None)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({}, "expected a list of 1 to 1,000 annotations"),
        ([], "expected a list of 1 to 1,000 annotations"),
        ([1], "annotation 1: expected an object with eye, position, text, title, found 1"),
        ([{"title": "a", "position": [0, 0, 0], "color": 1}], r"found \['color'\]"),
        ([{"position": [0, 0, 0]}], "annotation 1: has no title"),
        ([{"title": 3, "position": [0, 0, 0]}], "expected a text for title, found 3"),
        ([{"title": "a"}], "expected three finite numbers for position, found None"),
        ([{"title": "a", "position": [0, 0]}], "expected three finite numbers for position"),
        ([{"title": "a", "position": [0, 0, float("nan")]}], "expected three finite numbers for position"),
        ([{"title": "a", "position": [0, 0, 10**400]}], "expected three finite numbers for position"),
        ([{"title": "a", "position": [0, 0, True]}], "expected three finite numbers for position"),
        ([{"title": "a", "position": [0, 0, 0], "eye": "x"}], "expected three finite numbers for eye, found x"),
        ([{"title": "a", "position": [0, 0, 0], "eye": [0, 0, 0]}], "position and eye are the same"),
    ],
)
def test_invalid_annotations_are_named(entries, message, tmp_path):
    path = tmp_path / "annotations.json"
    path.write_text(json.dumps(entries))
    with pytest.raises(FileError, match=message):
        read_annotations(path)
