"""Writes camera files like Metashape's, and implements the projection that its manual defines."""

import torch

from tests.support.captures import write_image

CHUNK = ((0.36, 0.48, -0.8, -0.8, 0.6, 0.0, 0.48, 0.64, 0.6), (-3.0, 7.5, 2.0), 4.0)
"""Rotation, translation and scale from the chunk to the world."""


def world_of(chunk=CHUNK):
    """Returns the similarity transform [4, 4] fp64 of a chunk."""
    rotation, translation, scale = chunk
    matrix = torch.eye(4, dtype=torch.float64)
    matrix[:3, :3] = scale * torch.tensor(rotation, dtype=torch.float64).view(3, 3)
    matrix[:3, 3] = torch.tensor(translation, dtype=torch.float64)
    return matrix


def sensor_xml(number, width, height, calibration, kind="frame"):
    values = "".join(f"<{name}>{value!r}</{name}>" for name, value in calibration.items())
    size = f'<resolution width="{width}" height="{height}"/>'
    return (
        f'<sensor id="{number}" label="a camera" type="{kind}">{size}<calibration type="{kind}" class="initial">{size}'
        f'<f>7</f></calibration><calibration type="{kind}" class="adjusted">{size}{values}</calibration>'
        "<covariance><params>f cx</params><coeffs>1 0 0 1</coeffs></covariance></sensor>"
    )


def camera_xml(number, label, pose, sensor=0, component=0, enabled="true"):
    """Returns the element of a camera with a camera-to-chunk matrix [4, 4], or None for a camera without a pose."""
    transform = "" if pose is None else f"<transform>{' '.join(map(repr, pose.flatten().tolist()))}</transform>"
    return (
        f'<camera id="{number}" sensor_id="{sensor}" component_id="{component}" label="{label}" enabled="{enabled}">'
        f"{transform}<orientation>1</orientation><reference x='1' y='2' z='3' enabled='true'/></camera>"
    )


def document_xml(sensors, cameras, chunk=CHUNK, version="2.0.0"):
    """Returns a document with one chunk whose cameras are in a group."""
    rotation, translation, scale = chunk
    numbers = (" ".join(map(repr, values)) for values in (rotation, translation, [scale]))
    parts = "".join(
        f'<{name} locked="true">{text}</{name}>'
        for name, text in zip(("rotation", "translation", "scale"), numbers, strict=True)
    )
    return (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<document version="{version}">\n  <chunk label="Chunk 1">\n'
        f'<sensors next_id="1">{"".join(sensors)}</sensors><components next_id="1" active_id="0"><component id="0" '
        f'label="Component 1"><transform>{parts}</transform></component></components>\n<cameras next_id="9">'
        f'<group id="0" label="Group 1" type="folder">{"".join(cameras)}</group></cameras></chunk>\n</document>\n'
    )


def write_metashape(folder, views, chunk=CHUNK, **options):
    """Writes views, given in the world frame, with the cameras of a chunk; returns the folder."""
    K, size = views[0].camera.K.double(), (views[0].width, views[0].height)
    f = float(K[1, 1])
    calibration = dict(f=f, b1=float(K[0, 0]) - f, cx=float(K[0, 2]) - size[0] / 2, cy=float(K[1, 2]) - size[1] / 2)
    cameras = []
    to_chunk = torch.linalg.inv(world_of(chunk))
    for i, view in enumerate(views):
        pose = to_chunk @ torch.linalg.inv(view.camera.viewmat.double())
        pose[:3, :3] *= chunk[2]
        cameras.append(camera_xml(i, f"C:\\photos\\{view.name.rpartition('.')[0]}", pose))
        write_image(folder / "images" / view.name, view.image)
    (folder / "cameras.xml").write_text(document_xml([sensor_xml(0, *size, calibration)], cameras, chunk, **options))
    return folder


def project(points, calibration, width, height):
    """Projects points [P, 3] of the camera frame by the formulas of Metashape's manual for the type frame, [P, 2]."""
    c = {"k1": 0.0, "k2": 0.0, "k3": 0.0, "k4": 0.0, "p1": 0.0, "p2": 0.0, "b1": 0.0, "b2": 0.0, **calibration}
    x, y = points[:, 0] / points[:, 2], points[:, 1] / points[:, 2]
    r2 = x**2 + y**2
    radial = 1 + c["k1"] * r2 + c["k2"] * r2**2 + c["k3"] * r2**3 + c["k4"] * r2**4
    u = x * radial + c["p1"] * (r2 + 2 * x**2) + 2 * c["p2"] * x * y
    v = y * radial + c["p2"] * (r2 + 2 * y**2) + 2 * c["p1"] * x * y
    return torch.stack(
        [width / 2 + c["cx"] + u * c["f"] + u * c["b1"] + v * c["b2"], height / 2 + c["cy"] + v * c["f"]], 1
    )
