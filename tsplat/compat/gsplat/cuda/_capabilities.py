"""What can be asked for: values of options in gsplat 1.6, and which of its parts are implemented."""

from typing import Literal

CameraModel = Literal["pinhole", "ortho", "fisheye", "ftheta", "lidar"]
ExternalDistortionModelMeta = Literal["bivariate-windshield"]


def has_2dgs() -> bool:
    """Returns whether 2D Gaussians are implemented."""
    return True


def has_3dgs() -> bool:
    """Returns whether 3D Gaussians are implemented."""
    return True


def has_3dgut() -> bool:
    """Returns whether the unscented transform and evaluation in 3D are implemented."""
    return True


def has_adam() -> bool:
    """Returns whether `adam` and `SelectiveAdam` are implemented."""
    return True


def has_camera_wrappers() -> bool:
    """Returns whether gsplat's classes of cameras, which wrap its C++ code, are implemented."""
    return False


def has_losses() -> bool:
    """Returns whether `FusedGaussianLosses` is implemented."""
    return True


def has_reloc() -> bool:
    """Returns whether `compute_relocation` is implemented."""
    return True
