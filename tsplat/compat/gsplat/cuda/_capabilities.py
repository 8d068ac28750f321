"""Types of gsplat 1.6's options, and functions that tell which of its parts are implemented."""

from typing import Literal

CameraModel = Literal["pinhole", "ortho", "fisheye", "ftheta", "lidar"]
ExternalDistortionModelMeta = Literal["bivariate-windshield"]


def has_3dgs() -> bool:
    """Returns True: this part of gsplat is implemented."""
    return True


has_2dgs = has_3dgut = has_adam = has_losses = has_reloc = has_3dgs


def has_camera_wrappers() -> bool:
    """Returns False: gsplat's camera classes, which wrap C++ code, are not implemented."""
    return False
