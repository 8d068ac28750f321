"""A viser client without a browser: controls keep their values and call the connected callbacks."""

import contextlib
import threading
import types

import numpy as np


class Control:
    """A control. Assigning its value calls the callbacks without a client, as in viser."""

    def __init__(self, label, value=None, **options):
        self.label, self._value, self.visible = label, value, True
        self.callbacks = []
        for name, option in options.items():
            setattr(self, name, option)

    @property
    def value(self):
        return self._value

    @value.setter
    def value(self, value):
        self._value = value
        self._call(None)

    def on_update(self, callback):
        self.callbacks.append(callback)

    on_click = on_trigger = on_drag = on_upload = on_update

    def _call(self, client):
        for callback in self.callbacks:
            callback(types.SimpleNamespace(client=client, target=self))

    def use(self, value=None):
        """Sets the value like a client, or clicks a button."""
        if value is not None:
            self._value = value
        self._call("client")

    def remove(self):
        self.removed = True


class Markdown(Control):
    """Text; `contents` lists all its values so far."""

    def __init__(self, label, content, **options):
        self.contents = []
        super().__init__(label, content=content, **options)

    @property
    def content(self):
        return self.contents[-1]

    @content.setter
    def content(self, content):
        self.contents.append(content)


class Gui:
    """The controls of a client, by label."""

    def __init__(self):
        self.controls = {}

    def _add(self, label, value=None, **options):
        control = self.controls[label] = Control(label, value, **options)
        return control

    def add_markdown(self, content, **options):
        label = f"markdown {len(self.controls)}"
        self.controls[label] = Markdown(label, content, **options)
        return self.controls[label]

    def add_dropdown(self, label, options, **others):
        return self._add(label, options[0], options=options, **others)

    def add_slider(self, label, min, max, step, initial_value, **options):
        return self._add(label, initial_value, min=min, max=max, step=step, **options)

    def _with_value(self, label, initial_value, **options):
        return self._add(label, initial_value, **options)

    add_checkbox = add_text = add_number = add_vector3 = add_rgb = _with_value

    def add_button(self, label, **options):
        return self._add(label, **options)

    def add_upload_button(self, label, **options):
        return self._add(label, **options)

    def add_button_group(self, label, options, **others):
        return self._add(label, options[0], options=options, **others)

    def add_html(self, content, **options):
        return self._add(f"html {len(self.controls)}", content=content, **options)

    def add_command(self, label, **options):
        return self._add(f"command {label}", **options)

    def add_uplot(self, data, series, *, title, **options):
        return self._add(title, data=data, series=series, **options)

    def add_folder(self, label, **options):
        return contextlib.nullcontext()

    def add_tab_group(self):
        return types.SimpleNamespace(add_tab=self.add_folder)


class Camera:
    """A camera at (0, 0, -3) that looks at the origin."""

    def __init__(self, width=64, height=48):
        self.wxyz, self.position = np.array([1.0, 0, 0, 0]), np.array([0.0, 0, -3])
        self.fov, self.image_width, self.image_height = 0.8, width, height
        self.look_at, self.up_direction = np.zeros(3), np.array([0.0, -1, 0])
        self.callbacks = []

    def on_update(self, callback):
        self.callbacks.append(callback)

    def move(self, position):
        """Moves the camera like a client."""
        self.position = np.array(position, float)
        for callback in self.callbacks:
            callback(None)


class Client:
    """A client; `images` lists the images that it received, with their formats.

    While `visible` is set, its page answers :meth:`get_render`.
    """

    def __init__(self, client_id=0, width=64, height=48):
        self.client_id = client_id
        self.gui, self.camera, self.images = Gui(), Camera(width, height), []
        self.frusta, self.lines, self.knobs, self.arrows = [], [], [], []
        self.downloads = []
        self.visible, self.connected = threading.Event(), True
        self.visible.set()
        self.scene = types.SimpleNamespace(
            set_background_image=self._set_background_image,
            add_camera_frustum=self._add_camera_frustum,
            add_line_segments=self._add_line_segments,
            add_icosphere=self._add_icosphere,
            add_transform_controls=self._add_transform_controls,
        )

    def get_render(self, height, width):
        while self.connected:
            if self.visible.wait(0.01):
                return np.zeros((height, width, 3), np.uint8)
        raise RuntimeError("the client disconnected")

    def send_file_download(self, name, content, save_immediately):
        self.downloads.append((name, content))

    def atomic(self):
        return contextlib.nullcontext()

    @property
    def status(self):
        """The message, or the line about the image if there is none."""
        return self.message or self.gui.controls["markdown 0"].content

    @property
    def message(self):
        return self.gui.controls["markdown 1"].content

    @property
    def statuses(self):
        """All messages so far."""
        return self.gui.controls["markdown 1"].contents

    def _set_background_image(self, image, format="auto", jpeg_quality=None):
        self.images.append((image, format))

    def _add_camera_frustum(self, name, *arguments, **options):
        handle = Control(name, image=options.get("image"))
        self.frusta.append(handle)
        return handle

    def _add_icosphere(self, name, radius, color, *, position, **options):
        self.knobs.append(Control(name, position=position, removed=False))
        return self.knobs[-1]

    def _add_line_segments(self, name, points, colors, **_):
        self.lines.append(Control(name, points, removed=False))
        return self.lines[-1]

    def _add_transform_controls(self, name, *, position, **options):
        self.arrows.append(Control(name, position=position, removed=False))
        return self.arrows[-1]
