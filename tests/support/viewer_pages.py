"""Operates the viewer's page in a real browser: tabs, buttons, lists, keys, mouse and touch."""

import json
import time

SIZES = {"desktop": dict(width=1280, height=800), "phone": dict(width=390, height=844, phone=True)}
"""Arguments of `open_page`."""


def click(page, text, selector="button"):
    """Clicks the element with a text as soon as it exists."""
    click_element(page, _named(text, selector), text)


def _named(text, selector):
    """Returns a JavaScript expression for the visible element with a text."""
    test = f"e.offsetWidth && e.innerText.trim() === {json.dumps(text)}"
    return f"[...document.querySelectorAll({json.dumps(selector)})].find(e => {test})"


def open_controls(page):
    """Opens the controls, which are initially closed on a phone."""
    script = """(() => {
        const bar = document.querySelector('[style*="cursor: pointer"][style*="height: 3.5em"]');
        if (bar && !bar.querySelector('button')) bar.click();
        return [...document.querySelectorAll('[role=tab]')].some(e => e.getBoundingClientRect().width > 0);
    })()"""
    until(lambda: page.evaluate(script), "no controls")


def open_tab(page, name):
    """Opens a tab; on phones, panels may move during the first click."""
    open_controls(page)
    tabs = "[...document.querySelectorAll('[role=tab]')]"
    script = f"{tabs}.some(e => e.ariaSelected === 'true' && e.innerText.trim() === {json.dumps(name)})"

    def is_open():
        if not page.evaluate(script):
            click(page, name, "[role=tab]")
            time.sleep(0.5)
        return page.evaluate(script)

    until(is_open, f"no tab {name}")


def choose(page, label, option):
    """Chooses an option of a list; on busy pages, lists may close during the first click."""
    labels = f"[...document.querySelectorAll('label')].filter(e => e.innerText.trim() === {json.dumps(label)})"
    field = f"{labels}.map(label => document.getElementById(label.htmlFor)).find(Boolean)"
    listed = _named(option, "[role=option]")

    def is_chosen():
        if page.evaluate(f"{field}?.value") != option:
            if page.evaluate(f"Boolean({listed})"):
                click_element(page, listed, option)
            else:
                page.evaluate("document.activeElement.blur()")
                click_element(page, field, label)
            time.sleep(0.5)
        return page.evaluate(f"{field}?.value") == option

    until(is_chosen, f"{label} is not {option}")


def click_element(page, expression, name):
    """Clicks the center of the element that an expression yields with the mouse; repeats the click if it has moved."""
    script = f"""(() => {{
        const element = {expression};
        if (!element) return null;
        element.scrollIntoView({{block: 'nearest'}});
        removeEventListener('click', window.note, true);
        window.note = (event) => (window.clicked = Boolean(({expression})?.contains(event.target)));
        window.clicked = false;
        addEventListener('click', window.note, true);
        const box = element.getBoundingClientRect();
        return box.width ? [box.x + box.width / 2, box.y + box.height / 2] : null;
    }})()"""
    found = []

    def is_clicked():
        found.append(page.evaluate(script))
        if not found[-1] or found[-2:] != [found[-1]] * 2:  # the element is moving
            return False
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            mouse(page, kind, found[-1])
        return page.evaluate("window.clicked") is not False  # None if the click led to another page

    until(is_clicked, f"no {name}")


def press(page, key, seconds=0.0):
    """Presses a key outside of all text controls, and holds it for a number of seconds."""
    page.evaluate("document.activeElement.blur()")
    letter = len(key) == 1
    code = dict(code=f"Key{key.upper()}" if letter else key, windowsVirtualKeyCode=ord(key.upper()) if letter else 37)
    for kind in ("keyDown", "keyUp"):
        page.call("Input.dispatchKeyEvent", type=kind, key=key, **code)
        time.sleep(seconds if kind == "keyDown" else 0)


def drag(page, points, touch=False, button="left"):
    """Drags along points of the page with the mouse or by touch."""
    if not touch:
        mouse(page, "mouseMoved", points[0], button)
    for i, point in enumerate(points):
        time.sleep(0.2)
        if touch:
            page.call(
                "Input.dispatchTouchEvent",
                type="touchMove" if i else "touchStart",
                touchPoints=[dict(x=point[0], y=point[1])],
            )
        else:
            mouse(page, "mouseMoved" if i else "mousePressed", point, button)
    if touch:
        page.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
    else:
        mouse(page, "mouseReleased", points[-1], button)


def mouse(page, kind, point, button="left"):
    page.call("Input.dispatchMouseEvent", type=kind, x=point[0], y=point[1], button=button, clickCount=1)


def until(condition, problem, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, problem
        time.sleep(0.3)
