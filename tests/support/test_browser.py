"""The browser that tests drive."""

import pytest

from tests.support.browser import CHROMIUM, open_page

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")]


def test_page_of_a_test_that_fails_is_closed():
    with pytest.raises(KeyError), open_page("about:blank") as page:
        assert page.evaluate("1 + 1") == 2
        raise KeyError
    assert page._socket.close_code is not None
    assert page._loop.is_closed()
