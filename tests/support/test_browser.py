"""Tests of the browser driver."""

import pytest

from tests.support.browser import CHROMIUM, open_page

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")]


def test_page_of_a_test_that_fails_is_closed():
    def fail(page):
        assert page.evaluate("1 + 1") == 2
        raise KeyError(page)

    with pytest.raises(KeyError) as error, open_page("about:blank") as page:
        fail(page)
    (page,) = error.value.args
    assert page._socket.close_code is not None
    assert page._loop.is_closed()
