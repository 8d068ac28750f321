"""HTML from untrusted values."""

import os
from html.parser import HTMLParser

import pytest

from tsplat.viewing.markup import Html, element, escape, fill, join

HOSTILE = [
    "<script>alert(1)</script>",
    "\"'><img src=x onerror=alert(1)>",
    "a & b",
    "</title>",
    "{{body}}",
    "\N{SNOWMAN}",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_text_and_attributes_are_escaped(text):
    texts, attributes = [], []

    class Parser(HTMLParser):
        def handle_starttag(self, tag, attrs):
            attributes.append((tag, attrs))

        def handle_data(self, data):
            texts.append(data)

    parser = Parser()
    parser.feed(element("p", text, title=text))
    parser.close()
    assert "".join(texts) == text
    assert attributes == [("p", [("title", text)])]


def test_html_is_inserted_as_it_is():
    assert element("p", element("b", "<"), None, 3) == "<p><b>&lt;</b>3</p>"
    assert join(["<", Html("<br>"), None]) == "&lt;<br>"


def test_attributes():
    found = element("input", class_="a b", data_value=1.5, hidden=True, checked=False, title=None)
    assert found == '<input class="a b" data-value="1.5" hidden>'


def test_characters_that_html_does_not_allow():
    assert escape("a\x00\x1b\ufffeb\tc\nd") == "a\ufffd\ufffd\ufffdb\tc\nd"
    assert escape(os.fsdecode(b"sc\xe9ne")) == "sc\\xe9ne"
    assert escape("\ud800") == "?"
    escape("\udce9\ud800").encode()


def test_fill_replaces_in_one_pass():
    assert fill("<p>{{a}}</p>{{b}}", {"a": "{{b}}<", "b": Html("<i>")}) == "<p>{{b}}&lt;</p><i>"
    with pytest.raises(KeyError):
        fill("{{missing}}", {})
