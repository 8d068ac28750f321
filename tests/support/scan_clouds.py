"""Writes point clouds with laspy and pye57; tests are skipped without these packages."""

import numpy as np
import pytest

POINTS = np.array([[448211.5, 5411840.25, 304.125], [448212.5, 5411841.25, 305.125], [448213.0, 5411840.0, 303.0]])
COLORS = np.array([[65535, 0, 13107], [0, 65535, 0], [257, 0, 65535]])


def write_las(path, points=POINTS, colors=COLORS, version="1.2", point_format=2):
    laspy = pytest.importorskip("laspy")
    if path.suffix == ".laz":
        pytest.importorskip("lazrs")
    header = laspy.LasHeader(version=version, point_format=point_format)
    header.offsets, header.scales = np.floor(points.min(0)), np.full(3, 0.001)
    file = laspy.LasData(header)
    file.x, file.y, file.z = points.T
    if colors is not None:
        file.red, file.green, file.blue = colors.T.astype(np.uint16)
    file.write(str(path))
    return path


def write_e57(path, points=POINTS, colors=COLORS // 257, **pose):
    pye57 = pytest.importorskip("pye57")
    data = dict(zip(("cartesianX", "cartesianY", "cartesianZ"), points.T.copy()))
    if colors is not None:
        data |= dict(zip(("colorRed", "colorGreen", "colorBlue"), colors.T.astype(np.uint8).copy()))
    file = pye57.E57(str(path), mode="w")
    file.write_scan_raw(data, **pose)
    file.close()
    return path
