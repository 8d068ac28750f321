"""Parses HTML pages, and runs a headless browser if one is installed."""

import base64
import io
import subprocess
from html.parser import HTMLParser

import pytest
from PIL import Image

from tests.support.browser import CHROMIUM

VOID = {"br", "img", "input", "link", "meta"}


class Page(HTMLParser):
    """A parsed page: (tag, attributes, text) of every element, in document order."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.elements, self._open = [], []
        self.feed(text)
        self.close()
        assert not self._open, self._open[-1]

    def handle_starttag(self, tag, attrs):
        self.elements.append([tag, dict(attrs), ""])
        if tag not in VOID:
            self._open.append(self.elements[-1])

    def handle_endtag(self, tag):
        assert self._open.pop()[0] == tag, tag

    def handle_data(self, data):
        for element in self._open:
            element[2] += data

    def of(self, tag, **attributes):
        """Returns the elements with a tag and attributes."""
        found = [element for element in self.elements if element[0] == tag]
        wanted = {name.rstrip("_"): value for name, value in attributes.items()}
        return [element for element in found if all(element[1].get(name) == value for name, value in wanted.items())]

    def images(self, class_=None):
        """Returns the decoded images of a class by their descriptions."""
        found = {}
        for _, attributes, _ in self.of("img", class_=class_):
            head, _, data = attributes["src"].partition(",")
            assert head == "data:image/jpeg;base64"
            with Image.open(io.BytesIO(base64.b64decode(data, validate=True))) as image:
                image.load()
                assert image.size == (int(attributes["width"]), int(attributes["height"]))
                found[attributes["alt"]] = image
        return found


def run_browser(*arguments):
    """Runs Chromium without a window, and returns its output. Skips the test if it is not installed."""
    if CHROMIUM is None:
        pytest.skip("needs chromium")
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", *arguments]
    result = subprocess.run(command, capture_output=True, timeout=300, check=True)
    return result.stdout.decode()
