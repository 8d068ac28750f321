"""HTML from untrusted values."""

import os
from html.parser import HTMLParser

import pytest

from tsplat.viewing.markup import Html, escape, fill

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
    parser.feed(fill('<p title="{{a}}">{{#b}}{{a}}{{/b}}</p>', {"a": text, "b": True}))
    parser.close()
    assert "".join(texts) == text
    assert attributes == [("p", [("title", text)])]


def test_html_is_inserted_as_it_is():
    assert fill("{{a}}{{b}}{{c}}{{d}}", {"a": "<", "b": Html("<br>"), "c": None, "d": 3}) == "&lt;<br>3"


def test_sections():
    rows = [{"x": 1, "cells": [{"x": "a"}, {"x": "<"}]}, {"cells": []}]
    values = {"rows": rows, "x": "outer", "one": {"x": 2}, "none": None, "text": "t"}
    assert fill("{{#rows}}{{x}}{{#cells}}-{{x}}{{/cells}}{{^cells}} none{{/cells}};{{/rows}}", values) == (
        "1-a-&lt;;outer none;"
    )
    assert fill("{{#one}}{{x}}{{/one}}{{^one}}no{{/one}}{{#none}}yes{{/none}}{{^none}}no{{/none}}", values) == "2no"
    assert fill("{{#text}}\n[{{text}}]{{/text}}", values) == "\n[t]"


def test_characters_that_html_does_not_allow():
    assert escape("a\x00\x1b\ufffeb\tc\nd") == "a\ufffd\ufffd\ufffdb\tc\nd"
    assert escape(os.fsdecode(b"sc\xe9ne")) == "sc\\xe9ne"
    assert escape("\ud800") == "?"
    escape("\udce9\ud800").encode()


def test_fill_replaces_in_one_pass():
    assert fill("<p>{{a}}</p>{{b}}", {"a": "{{b}}<", "b": Html("<i>")}) == "<p>{{b}}&lt;</p><i>"
    assert fill("{{#a}}{{b}}{{/a}}", {"a": [{"b": "{{c}}"}], "c": "{{d}}"}) == "{{c}}"
    for template in ("{{missing}}", "{{#missing}}{{/missing}}"):
        with pytest.raises(KeyError):
            fill(template, {})
