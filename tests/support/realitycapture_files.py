"""Writes camera tables like those of RealityCapture and RealityScan, and implements the projection of their lens."""

import math

import torch

from tests.support.captures import write_image

REALITYCAPTURE = "#name,x,y,alt,heading,pitch,roll,f,px,py,k1,k2,k3,k4,t1,t2"
REALITYSCAN = "#name,x,y,alt,yaw,pitch,roll,f_35mm,px_norm,py_norm,k1,k2,k3,k4,t1,t2"
OPENCV = (
    "#name,tx,ty,tz,R00,R01,R02,R10,R11,R12,R20,R21,R22,f_pix,px_pix,py_pix,k1,k2,t2,t1,k3,k4 (t = [tx,ty,tz] and "
    "R = [Rij] provided in row major ordering, Brown lens distortion model coefficients in OpenCV ordering)"
)
LENS = ("k1", "k2", "k3", "k4", "t1", "t2")


def angles_of(rotation):
    """Returns yaw, pitch and roll in degrees of a world-to-camera rotation [3, 3].

    The camera-to-world rotation in OpenGL axes is Rz(-yaw) Rx(pitch) Ry(roll).
    """
    turned = (torch.diag(torch.tensor([1.0, -1, -1], dtype=torch.float64)) @ rotation.double()).T
    pitch = math.asin(max(-1.0, min(1.0, float(turned[2, 1]))))
    roll = math.atan2(-float(turned[2, 0]), float(turned[2, 2]))
    yaw = math.atan2(float(turned[0, 1]), float(turned[1, 1]))
    return [math.degrees(angle) for angle in (yaw, pitch, roll)]


def row(name, camera, header=REALITYCAPTURE, **lens):
    """Returns the line of a camera with equal focal lengths and the given lens coefficients."""
    viewmat, K, scale = camera.viewmat.double(), camera.K.double(), max(camera.width, camera.height)
    f, cx, cy = (float(K[i]) for i in ((0, 0), (0, 2), (1, 2)))
    values = {key: lens.get(key, 0.0) for key in LENS}
    values |= dict(zip(("heading", "pitch", "roll"), angles_of(viewmat[:3, :3]), strict=True))
    values |= dict(zip(("x", "y", "alt"), camera.position.tolist(), strict=True))
    values |= dict(f=f * 36 / scale, px=(cx - camera.width / 2) / scale, py=(cy - camera.height / 2) / scale)
    values |= dict(yaw=values["heading"], f_35mm=values["f"], px_norm=values["px"], py_norm=values["py"])
    values |= {f"R{i}{j}": float(viewmat[i, j]) for i in range(3) for j in range(3)}
    values |= dict(zip(("tx", "ty", "tz"), viewmat[:3, 3].tolist(), strict=True), f_pix=f, px_pix=cx, py_pix=cy)
    columns = header.partition(" (")[0].split(",")[1:]
    return ",".join([name, *(repr(values[column]) for column in columns)])


def write_realitycapture(folder, views, header=REALITYCAPTURE, images="images", file="cameras.csv", **lens):
    """Writes views with equal focal lengths, and returns the folder."""
    for view in views:
        write_image(folder / images / view.name, view.image)
    lines = [header, *(row(view.name, view.camera, header, **lens) for view in views)]
    (folder / file).write_text("\n".join(lines) + "\n")
    return folder


def project(points, viewmat, K, lens):
    """Projects world points [P, 3] through Brown's lens, where t1 belongs to x and t2 to y, [P, 2]."""
    local = points.double() @ viewmat[:3, :3].double().T + viewmat[:3, 3].double()
    x, y = (local[:, :2] / local[:, 2:]).unbind(1)
    k1, k2, k3, k4, t1, t2 = (lens.get(name, 0.0) for name in LENS)
    r2 = x**2 + y**2
    radial = 1 + r2 * (k1 + r2 * (k2 + r2 * (k3 + r2 * k4)))
    u = x * radial + t1 * (r2 + 2 * x**2) + 2 * t2 * x * y
    v = y * radial + t2 * (r2 + 2 * y**2) + 2 * t1 * x * y
    return torch.stack([u, v], 1) * K.diagonal()[:2].double() + K[:2, 2].double()
