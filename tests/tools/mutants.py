"""Seed small bugs and check that the tests catch them: `python -m tests.tools.mutants`, `--sample 10 --seed 0`.

Each mutant is one replacement in a copy of the package. The tests of that part of the package run until the first
failure. A mutant that survives shows that a test is missing.
"""

import argparse
import concurrent.futures
import dataclasses
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.support.paths import ROOT
from tests.tools.fuzz import RESULTS, write_record

TIMEOUT = 600

STAGES = tuple(
    f"tests/stages/test_{stage}.py"
    for stage in ("projection", "shading", "intersection", "compositing", "bands", "memory", "validation")
)
END_TO_END = ("tests/test_rasterization.py", "tests/test_properties.py")


def _compiled(*files: str) -> tuple[str, ...]:
    """Arguments of pytest: tests of Triton kernels, compiled for the CPU, beginning with the given files."""
    return ("-m", "triton", *dict.fromkeys((*files, *STAGES, *END_TO_END)))


def _torch(*files: str) -> tuple[str, ...]:
    """Arguments of pytest: tests of the torch backend and of everything around, beginning with the given files."""
    around = ("tests/test_reference.py", "tests/test_arguments.py")
    return ("-m", "not interpreter and not triton", *dict.fromkeys((*files, *STAGES, *END_TO_END, *around)))


PARTS = (
    "-m", "triton", "tests/kernels/compositing/test_lists.py", "tests/kernels/compositing/test_chunks.py",
    "tests/stages/test_compositing.py", "tests/stages/test_bands.py",
)  # fmt: skip
SLOTS = (*PARTS, "tests/kernels/compositing/test_slots.py")
FOLD = ("tests/kernels/compositing/test_pixel_sums.py",)
"""On the emulator, as kernels for CPUs have no PTX."""
FEATURES = ("-m", "triton", "tests/kernels/compositing/test_matrices.py", "tests/kernels/compositing/test_chunks.py")
IMAGE_LOSS, ADAM = "tests/ops/test_image_loss.py", "tests/ops/test_adam.py"
LENS_GRADIENTS = ("tests/stages/test_lens_gradients.py", "-k", "triton or found")
LENSES = ("tests/scene/capture/test_lenses.py",)
CLIENTS = ("tests/compat/gsplat/test_optimizers.py", "tests/compat/gsplat/test_clients.py")
STRATEGIES = ("-m", "not interpreter", "tests/strategies")
THRESHOLDS = ("-m", "triton", "tests/kernels/test_thresholds.py")
CAPACITY = ("-m", "triton", "tests/stages/test_capacity.py")
EXCHANGE = ("tests/stages/test_exchange.py",)
STRIDES = ("-m", "triton", "tests/test_strides.py")
RAYS = ("tests/stages/test_eval3d.py",)
SURFELS = ("-k", "not gpu", "tests/stages/test_surfels.py")


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A bug: the replacement of the `nth` occurrence of `old` in `path` by `new`. `tests` are arguments of pytest."""

    path: str
    old: str
    new: str
    what: str
    tests: tuple[str, ...]
    nth: int = 0

    @property
    def name(self) -> str:
        return f"{self.path}: {self.what}"

    def apply(self, package: Path) -> None:
        path = package / self.path
        parts = path.read_text().split(self.old)
        if len(parts) < self.nth + 2:
            raise SystemExit(f"{self.path}: {self.old!r} not found; update the mutant {self.what!r}")
        head, tail = self.old.join(parts[: self.nth + 1]), self.old.join(parts[self.nth + 1 :])
        path.write_text(head + self.new + tail)


def _in(path: str, tests: tuple[str, ...], *bugs: tuple[str, str, str] | tuple[str, str, str, int]) -> list[Mutant]:
    return [Mutant(path, bug[0], bug[1], bug[2], tests, *bug[3:]) for bug in bugs]


MUTANTS = [
    *_in(
        "kernels/prepared.py",
        ("-m", "triton", "tests/kernels/test_prepared.py"),
        (' if {contiguous} else {name}"', '"', "strides are checked once"),
        ("key += [name, f\"{name}.__class__\"]", "key += [name]", "True is 1"),
        ("b'' if {name} is None", "0 if {name} is None", "None takes space"),
        ("self._runs[key] = triton_cpu.prepare", "self._runs[()] = triton_cpu.prepare", "each launch is the first"),
        ("is None else {name}.dtype if", "is None else 0 if", "dtypes are not told apart"),
    ),
    *_in(
        "kernels/spherical_harmonics.py",
        ("-m", "triton", "tests/stages/test_shading.py"),
        ("total >= 0.0, 0, 1 << channel", "total > 0.0, 0, 1 << channel", "black has no gradient"),
        ("tl.where(total < 0.0, 0.0, total)", "tl.maximum(total, 0.0)", "NaN is black"),
        ("bits & 4 == 0", "bits & 2 == 0", "blue is clamped where green is"),
    ),
    *_in(
        "kernels/projection/__init__.py",
        ("-m", "triton", "tests/stages/test_projection.py"),
        ("tl.full([BLOCK], -1, tl.int32)", "tl.full([BLOCK], 0, tl.int32)", "culled Gaussians are those of row 0"),
    ),
    *_in(
        "triton_cpu/trial.py",
        ("-m", "triton", "tests/stages/test_backend.py"),
        ("y.item() != 380", "False", "what compiled code computes is not checked"),
    ),
    *_in(
        "stages/backend.py",
        ("-m", "triton", "tests/stages/test_backend.py"),
        ("_chosen[device, backend] = found", "pass", "the backend is chosen in every call"),
    ),
    *_in(
        "kernels/compositing/walk_steps.py",
        THRESHOLDS,
        ("constant(TRANSMITTANCE_MIN, after)", "TRANSMITTANCE_MIN", "threshold of transmittance in fp32"),
    ),
    *_in(
        "kernels/compositing/walk_steps.py",
        THRESHOLDS,
        ("constant(LOG2_ALPHA_MIN, e)", "LOG2_ALPHA_MIN", "threshold of alpha in fp32"),
    ),
    *_in(
        "kernels/compositing/matrices_backward.py",
        THRESHOLDS,
        ("constant(LOG2_ALPHA_MIN, e)", "LOG2_ALPHA_MIN", "threshold of alpha in fp32 for many channels"),
    ),
    *_in(
        "kernels/projection/__init__.py",
        THRESHOLDS,
        ("constant(ALPHA_MIN, bounded)", "ALPHA_MIN", "threshold of opacity in fp32"),
    ),
    *_in(
        "kernels/device_math.py",
        THRESHOLDS,
        ("constant(FLOOR * FLOOR, ratio)\n    v_det", "FLOOR * FLOOR\n    v_det",
         "lower bound of compensation in fp32"),
    ),
    *_in(
        "stages/process_group.py",
        EXCHANGE,
        ("weakref.ref(group)", "(lambda: group)", "a graph keeps the threads of a destroyed process group"),
    ),
    *_in(
        "kernels/device_math.py",
        _compiled("tests/stages/test_projection.py"),
        ("g = (v[0], 0.5 * v[1],", "g = (v[0], v[1],", "factor 1/2 of an off-diagonal gradient lost"),
        ("xx = 2.0 * s[0] * s[0]", "xx = s[0] * s[0]", "factor 2 of a scale's gradient lost"),
        ("2.0 * (w * (v[2] - v[6])", "2.0 * (w * (v[2] + v[6])", "sign in the quaternion's gradient"),
        ("- 4.0 * z * (v[0] + v[4])", "- 4.0 * z * (v[0] + v[8])", "swapped index in the quaternion's gradient"),
        ("(v[2] - along * unit[2]) * inverse_norm,\n        (v[3]", "v[2] * inverse_norm,\n        (v[3]",
         "normalization's projection lost for one component"),
        ("2.0 * (x * z - w * y)", "2.0 * (x * z + w * y)", "sign in the rotation"),
        ("half = 0.5 * v[1]", "half = v[1]", "factor 1/2 of the conic's gradient lost"),
        ("0.5 * v / (tl.where(free", "v / (tl.where(free", "factor 1/2 of the compensation's gradient lost"),
        ("-2.0 * s[1] * (v_det + v_det_blurred)", "-2.0 * s[1] * v_det",
         "blurred determinant's gradient lost in the compensation"),
    ),
    *_in(
        "kernels/projection/lens_models.py",
        _compiled("tests/stages/test_unscented.py"),
        ("lens[6] * mixed + lens[7] * (square", "lens[7] * mixed + lens[6] * (square", "p1 and p2 swapped"),
        ("(2.0 * lens[4] + square * 3.0 * lens[5])", "(lens[4] + square * lens[5])", "derivative of the denominator"),
        ("6.0 * lens[7] * a", "2.0 * lens[7] * a", "derivative of a tangential term"),
        ("yx = 2.0 * slope * a * b + tangent + prism_y * a", "yx = 2.0 * slope * a * b + tangent + prism_y * b",
         "derivative of a thin prism term"),
        ("seen = seen & (square <= lens[4] * lens[4])", "seen = seen & (square < 100.0)",
         "fisheye lenses show what is beyond their largest angle"),
        ("along = 2.0 * slope * (q0 * v_x + q1 * v_y)", "along = slope * (q0 * v_x + q1 * v_y)",
         "factor 2 in the gradient of fisheye distortion"),
        ("seen & (gain > constant(GAIN_MIN, gain))", "seen", "distortion folds back"),
        ("/ (1.0 - along)", "", "the time of an exposure depends on its pixel only once"),
        ("v_u + per_column * v_time, v_v + per_row * v_time", "v_u, v_v", "the time of an exposure has no gradient"),
        ("y * r[2] - z * r[1]", "y * r[2] + z * r[1]", "sign in the velocity of a turning camera"),
    ),
    *_in(
        "kernels/projection/lens_models.py",
        _compiled("tests/stages/test_ftheta.py", "tests/stages/test_unscented.py"),
        ("seen & (theta <= lens[5])", "seen", "f-theta lenses show what is beyond their largest angle"),
        ("inside = tl.minimum(theta, lens[5])", "inside = theta", "f-theta polynomials fold back"),
        ("from_x = lens[7] * v_x + lens[9] * v_y", "from_x = lens[7] * v_x + lens[8] * v_y",
         "linear map not transposed in the gradient"),
        ("-gain * gain * slope /", "-gain * slope /", "derivative of the inverse of an f-theta polynomial"),
        ("low = tl.where(rest <= 0.0", "low = tl.where(rest >= 0.0", "the wrong half of an interval"),
        ("t * (3.0 * lens[3] + t * (4.0", "t * (2.0 * lens[3] + t * (4.0", "derivative of an f-theta polynomial"),
        ("(theta > 0.0) & (theta <= lens[5])", "theta <= lens[5]", "no gradient on the optical axis"),
    ),
    *_in(
        "kernels/projection/unscented.py",
        _compiled("tests/stages/test_unscented.py"),
        ("UNSCENTED[2] - 2.0 + 6.0 * UNSCENTED[1]", "UNSCENTED[2]", "covariance around the center, not the mean"),
        ("2.0 * (UNSCENTED[2] - 1.0 + 6.0 * UNSCENTED[1])", "2.0 * UNSCENTED[2]", "gradient of the mean's shift"),
        ("v_u0 -= v_u", "v_u0 += v_u", "sign in the gradient of the center"),
        ("seen = seen & also", "seen = seen | also", "one valid sigma point is enough"),
        ("i // 2 == k // 3", "i // 2 == k % 3", "axes mixed up in the gradient"),
        ("constant(0.5, u0)", "constant(0.0, u0)", "depth of the start of the readout"),
        ("v_axes[3 * k + i] * scale[k]", "v_axes[3 * k + i]", "scale lost in the quaternion's gradient"),
    ),
    *_in(
        "kernels/projection/lens_models.py",
        LENS_GRADIENTS,
        ("-gain * v_k1, -gain * v_k2", "gain * v_k1, gain * v_k2", "sign in the gradients of k4 and k5"),
        ("v_x * mixed + v_y * (square + 2.0 * b * b)", "v_x * mixed + v_y * (square + 2.0 * a * a)",
         "axes mixed up in the gradient of p1"),
        ("v_x * square * square, v_y", "v_x * square, v_y", "gradient of s2 is that of s1"),
        ("square * (v_x * saved[3] + v_y * saved[4])", "square * (v_x * saved[3] - v_y * saved[4])",
         "sign in the gradient of a fisheye lens"),
        ("scale = 2.0 * inverse_norm", "scale = inverse_norm", "turns by half the angle"),
        ("x * u[0] + y * u[3] - z * u[2]", "x * u[0] - y * u[3] + z * u[2]", "quaternions in the wrong order"),
        ("v_angle * along * path[15] * path[15]", "v_angle * along * path[15]", "gradient of the angle of a turn"),
        ("cosine_after * sine_before - (1.0", "cosine_after * sine_before + (1.0", "sign in that gradient"),
        ("time * v_p[0], time * v_p[1]", "v_p[0], time * v_p[1]", "the end of the readout has all of a gradient"),
    ),
    *_in(
        "kernels/projection/unscented.py",
        LENS_GRADIENTS,
        ("total[3 + 12 * LENS + k] + v_path[k]", "total[3 + 12 * LENS + k]", "gradient of depth lost in that of poses"),
        ("v_camera[len(v_camera) - 15 + k]", "v_camera[k]", "coefficients in place of a path"),
        ("v_lens + place * 12", "v_lens + image * 12", "sums of a block overwrite those of others"),
    ),
    *_in(
        "kernels/projection/camera_sums.py",
        LENS_GRADIENTS,
        ("needs_poses and cameras.shutter is None", "needs_poses", "the start pose has another gradient"),
        ("shutter = means.new_zeros", "shutter = means.new_ones", "values that no kernel writes"),
    ),
    *_in(
        "kernels_torch/lens_models.py",
        ("tests/stages/test_lens_gradients.py", "-k", "torch"),
        ("bent_a - bent_a.detach()", "bent_a.detach() - bent_a", "sign in the gradient of a ray"),
        ("theta ** (2 * k + 3)", "theta ** (2 * k + 1)", "powers in the gradient of a fisheye ray"),
    ),
    *_in(
        "stages/lens_models.py",
        ("tests/stages/test_lens_gradients.py", "-k", "gradcheck or invalid"),
        ("_path(cameras.viewmats.to", "_path(cameras.viewmats.detach().to", "the start pose has no gradient"),
        ("torch.where(valid[..., None], pose, still)", "pose", "gradients of invalid poses are NaN"),
    ),
    *_in(
        "stages/lens_models.py",
        _torch("tests/stages/test_unscented.py", "tests/stages/test_ftheta.py"),
        ("torch.where(cosine < 0, -q1, q1)", "q1", "the long way around"),
        (".cumprod(-1)", "", "the last angle at which a fisheye lens grows, not the first"),
        ("Ks[..., :2, 2].detach().to(dtype) + 0.5", "Ks[..., :2, 2].detach().to(dtype)",
         "f-theta principal points from the corner"),
        ("angle = min(angle, stop)", "pass", "f-theta lenses see beyond where their polynomial stops to grow"),
        ("if stop < distance", "if stop > distance", "domain of an inverse f-theta polynomial"),
        ("abs(roots.imag) <= 1e-6 * abs(roots)", "abs(roots.imag) >= 0", "complex roots bound an f-theta lens"),
        ("if abs(c) > NEGLIGIBLE", "if True", "negligible coefficients overflow"),
        ("path[[10, 13]] = -4 * MAGNITUDE_MAX", "pass", "invalid cameras with a rolling shutter see"),
    ),
    *_in(
        "kernels/compositing/footprints/ray.py",
        RAYS,
        ("return r[0] * x, r[3] * x, r[6] * x,", "return r[0] * x, r[1] * x, r[2] * x,", "rotation not transposed"),
        ("constant(-HALF_LOG2_E, square)", "-HALF_LOG2_E", "constant rounded to fp32"),
        ("t = -along / tl.maximum(square, 1e-30)", "t = -along / square", "pixels without a ray have NaN"),
        ("at[3] >= 0.0", "at[3] >= -1e9", "what is behind the origin of a ray is seen"),
        ("x * at[2], y * at[1]", "y * at[2], y * at[1]", "a sum of products mixed up"),
        ("x = -g * v[0]", "x = g * v[0]", "sign of the gradient of a ray"),
        ("x, y, z, x * at[3], y * at[3], z * at[3]", "x, y, z, x, y, z", "gradient of a direction without its t"),
        ("sums[5] * s[0] / s[1]", "sums[5] * s[1] / s[0]", "scales swapped in the gradient of a rotation"),
        ("(sums[4] / s[0], sums[7] / s[1]", "(sums[4] / s[0], sums[4] / s[1]", "gradient of a scale of another axis"),
        ("safe + (tl.where(empty, 1.0, shape[k]),)", "safe + (shape[k],)", "rows that are not rendered have NaN"),
        ("valid = valid & (tl.abs(values[k])", "valid = valid | (tl.abs(values[k])", "invalid shapes are rendered"),
    ),
    *_in(
        "kernels/compositing/rays.py",
        RAYS,
        ("load_tuple(rays + pixel + image * (5 * plane)", "load_tuple(rays + pixel + image * (6 * plane)",
         "rays of another image"),
        ("load_tuple(origins + image * 3, 1, 3)", "load_tuple(origins, 1, 3)", "origin of the first image"),
        ("return inside & (tl.abs(pixel[3])", "return inside | (tl.abs(pixel[3])", "without a ray, Gaussians show"),
        ("total[k] + value", "value", "gradients of rays are not summed"),
    ),
    *_in(
        "kernels/compositing/chunks.py",
        RAYS,
        ("(program, end_chunk):\n                total", "(program, program + 1):\n                total",
         "gradients of rays of the first chunk only"),
    ),
    *_in(
        "kernels_torch/ray_footprint.py",
        RAYS,
        ("c = torch.addcmul(w, t, u)", "c = w", "the origin, not the nearest point"),
        ("seen = seen & (t >= 0)", "pass", "what is behind the origin of a ray is seen"),
        ("(t * v).sum(-1)", "v.sum(-1)", "gradient of a direction without its t"),
        ("products / scales[:, None, :]", "products", "scales lost in the gradient of a rotation"),
        ("(values.abs() <= INVERSE_MAX).all(0)", "(values.abs() <= INVERSE_MAX).any(0)", "invalid shapes are rendered"),
    ),
    *_in(
        "kernels_torch/lens_models.py",
        RAYS,
        ("theta.sin() / torch.where(radius > 0", "theta / torch.where(radius > 0", "fisheye rays"),
        ("(u - d * v) / (c - d * e), (c * v - e * u)", "(u - e * v) / (c - d * e), (c * v - d * u)",
         "linear map of f-theta rays transposed"),
        ("_at_angle(theta, x, y, radius, radius <= farthest)", "_at_angle(theta, x, y, radius, radius >= 0)",
         "f-theta rays beyond the largest angle"),
        ("root - (root * value - theta) / torch.where", "root - (root * value - theta).detach() / torch.where",
         "the inverse of an f-theta polynomial has no gradient"),
        ("solved & (gain > LENS_GAIN_MIN)", "solved", "rays of what the lens does not show"),
        ("valid = rest.abs() <=", "valid = rest.abs() <= torch.inf *", "fisheye rays beyond the largest angle"),
    ),
    *_in(
        "stages/eval3d.py",
        RAYS,
        ("shift = [shift[0] - x, shift[1] - y, shift[2]]", "shift = [shift[0] + x, shift[1] - y, shift[2]]",
         "origins of orthographic rays"),
        ("means2d=projected.means2d.detach()", "means2d=projected.means2d + 1", "means in pixels moved"),
    ),
    *_in(
        "stages/autograd.py",
        RAYS,
        ("return sum_by_id(v,", "return 2 * sum_by_id(v,", "gradients of shapes doubled"),
    ),
    *_in(
        "kernels/compositing/footprints/surfel.py",
        SURFELS,
        ("valid = valid & (tl.abs(shape[k]) <=", "valid = valid | (tl.abs(shape[k]) <=",
         "invalid transforms are rendered"),
        ("is_nearer = on_disc <= on_image", "is_nearer = on_disc <= 1e30", "no low-pass filter"),
        ("square = tl.where(w == 0.0, 1e30, square)", "square = square + 0.0", "a ray in the plane of a disc sees it"),
        ("on_image = 2.0 * tl.fma", "on_image = tl.fma", "low-pass filter of one pixel"),
        ("third[k] / safe[8] - x * row_x[k] - y * row_y[k]", "third[k] / safe[8]",
         "gradient of the last row not moved to the image's origin"),
        ("u = first[k] - t0 * third[k]", "u = first[k]", "tilt is not in the gradient"),
        ("v_mean = (2.0 * sums[8], 2.0 * sums[9])", "v_mean = (sums[8], sums[9])",
         "gradient of the filter's center halved"),
        ("r = level * (2.0 / LOG2_E) + 1e-3", "r = level * (1.0 / LOG2_E) + 1e-3", "parts at the edge of a disc lost"),
        ("to_center = -r * inverse", "to_center = r * inverse", "parts of tilted discs lost"),
        ("level / LOG2_E + 1e-3, zero, zero)", "level / LOG2_E - 2.0, zero, zero)", "parts of tiny discs lost"),
    ),
    *_in(
        "kernels/compositing/distortion.py",
        SURFELS,
        ("added & (weight > 0.0) & (transmittance > 0.5)", "added & (transmittance > 0.5)",
         "median of what is not added"),
        ("(tl.fma(z, transmittance * -1.0, z) - color[N - 1])", "(z - color[N - 1])",
         "distortion without transmittance"),
        ("between = z_behind * (1.0 - transmittance) - z_in_front * fall", "between = z_behind * (1.0 - transmittance)",
         "gradient of distortion between chunks"),
        ("state[1] - front - back", "state[1] - front - front", "gradient of z takes T in front twice"),
    ),
    *_in(
        "kernels/compositing/chunks.py",
        SURFELS,
        ("tl.fma(-2.0, between, kept)", "tl.fma(-1.0, between, kept)", "half of the distortion between chunks"),
        ("alive & (median_added[n] >= 0)", "alive", "median of a chunk without one"),
    ),
    *_in(
        "kernels/projection/surfels.py",
        SURFELS,
        ("tl.where(dot3(normal, p) < 0.0, 1.0, -1.0)", "tl.where(normal[2] < 0.0, 1.0, -1.0)",
         "normals off the axis face away"),
        (" - 2.0 * p[2] * v_denominator", "", "gradient of the box by depth"),
        ("v_p[i] * mean[k] + v_c0[i] * r[3 * k]", "v_p[i] * mean[k] + v_c0[i] * r[k]",
         "pose's gradient by the first axis"),
        ("- (m[0] * m[0] + m[1] * m[1]) * inverse, least)", "- m[0] * m[0] * inverse, least)",
         "width of a box by one axis"),
    ),
    *_in(
        "kernels_torch/surfel_footprint.py",
        SURFELS,
        ("exponent = torch.where(w == 0, NOTHING, exponent)", "pass", "a ray in the plane of a disc sees it"),
        ("return 2 * found[:, 8:10]", "return found[:, 8:10]", "gradient of the filter's center halved"),
    ),
    *_in(
        "kernels_torch/distortion.py",
        SURFELS,
        ("difference[:, :-1] + weighted", "difference[:, :-1]", "own part of the difference lost"),
        ("early = (weight > 0) & (in_front", "early = (in_front", "median of what is not added"),
    ),
    *_in(
        "stages/surfel_pixels.py",
        SURFELS,
        ("(densify - densify.detach()) * transforms.detach()[:, 8:]", "densify - densify.detach()",
         "densification without depth"),
        ("torch.where(rows >= 0, rows, len(depths))", "rows.clamp_min(0)", "median of what shows nothing"),
        ("unique=projected.n_cameras == 1", "unique=True", "gradients of all cameras but one lost"),
        ("splats._replace(colors=features[:, 3:])", "splats._replace(colors=features[:, :-3])", "normals for colors"),
    ),
    *_in(
        "scene/capture/lenses.py",
        LENSES,
        ("torch.tensor([[k4, k3]]", "torch.tensor([[k3, k4]]", "p1 and p2 of points swapped"),
        ("_roots([1 - LENS_GAIN_MIN, k1, k2])", "[]", "native pixels that no Gaussian reaches are trained on"),
    ),
    *_in(
        "scene/cameras.py",
        LENSES,
        ('coeffs": distortion[:, 2:]', 'coeffs": distortion[:, 2:].flip(1)', "p1 and p2 swapped"),
    ),
    *_in(
        "kernels/projection/camera_models.py",
        _compiled("tests/stages/test_projection.py"),
        ("+ v[1] * (t0[0] * t1[2] + t0[2] * t1[0])", "+ v[1] * t0[0] * t1[2]",
         "cross term of the covariance's gradient lost"),
    ),
    *_in(
        "kernels/projection/camera_models.py",
        _compiled("tests/stages/test_projection.py", "tests/kernels/test_camera_models.py"),
        ("- tl.where(inside, v_slope * p / (z * z), 0.0)", "", "cross term of the Jacobian's gradient lost"),
        ("tl.where(inside, v_slope / z, 0.0)", "v_slope / z", "gradient flows through the clamp of the field of view"),
        ("fx * p[0] / p[2] + cx", "fx * p[0] / p[2] + cy", "principal point's axes swapped"),
        ("(fx * p[0] + cx, fy * p[1] + cy)", "(fx * p[0] + cx, fx * p[1] + cy)", "ortho: focal lengths of x for y"),
        ("return fx * v_pixel[0], fy * v_pixel[1], p[2] * 0.0", "return v_pixel[0], v_pixel[1], p[2] * 0.0",
         "ortho: focal length lost in the gradient"),
        ("m = (2.0 * c + square * n)", "m = (2.0 + square * n)", "fisheye: cosine lost in the series"),
        ("k = tl.where(behind, turn - k, k)", "k = k", "fisheye: points behind the camera mirrored"),
        ("3.0 * turn * around * around - n, n)", "n, n)",
         "fisheye: second derivative behind the camera that of the mirrored point"),
        ("along = 2.0 * column - trace * d[2] - bent * n", "along = 2.0 * column - trace * d[2]",
         "fisheye: derivative of M lost"),
        ("mixed = v_0[1] + v_1[0]", "mixed = v_0[1]", "fisheye: half of an off-diagonal gradient lost"),
        ("- 2.0 * bent\n", "+ 2.0 * bent\n", "fisheye: sign of a gradient of depth"),
        ("tl.where(behind, square, 1.0)", "square + 1e-7", "fisheye: an epsilon behind the camera"),
    ),
    *_in(
        "kernels/compositing/walk_steps.py",
        PARTS,
        ("added = after > constant(TRANSMITTANCE_MIN, after)", "added = after >= 0.0", "a pixel never stops"),
        ("difference = v_dot_c - behind", "difference = v_dot_c + behind",
         "sign of the contribution of Gaussians behind"),
        ("tl.fma(alpha, difference, behind), weight", "tl.fma(alpha, -difference, behind), weight",
         "sign of what a Gaussian adds to the color behind others"),
        ("    transmittance = transmittance * reciprocal(1.0 - alpha, APPROX)\n    weight = alpha * transmittance\n",
         "    weight = alpha * transmittance\n    transmittance = transmittance * reciprocal(1.0 - alpha, APPROX)\n",
         "weight of the transmittance behind a Gaussian"),
        ("tl.store(alphas + pixel, 1.0 - transmittance", "tl.store(alphas + pixel, transmittance", "T stored as alpha"),
        ("tl.maximum(transmittance, 1e-6)", "tl.maximum(transmittance, 1e-3)",
         "transmittance of a chunk's end too high"),
        (" + part // PARTS_ACROSS * HEIGHT", "", "every part of a tile is in its first rows"),
        ("tile = first_tile + index % tiles", "tile = index % tiles", "first tile of a band ignored"),
        ("shown = tl.load(masks + (grid[1] + entries[0] % grid[0])) != 0", "shown = True", "tile masks ignored"),
        ("range(entries[4], program)", "range(entries[4], program - 1)", "one chunk before ignored"),
        ("(start + tl.max(last))", "(start + tl.min(last))", "end of a list that of its first pixel"),
        ("(program - first_chunk) * CHUNK", "(program - first_chunk) * CHUNK + 1",
         "first entry of a chunk lost"),
        ("tl.minimum(begin + CHUNK, count)", "tl.minimum(begin + CHUNK - 1, count)",
         "last entry of a chunk lost"),
        ("tl.minimum(begin + CHUNK, count)", "begin + CHUNK", "last chunk of a list too long"),
    ),
    *_in(
        "kernels/compositing/footprints/ellipse.py",
        PARTS,
        ("+ 1e-3 + terms * 1e-6", "- 1e-3 - terms * 1e-6", "no room for rounding"),
        (" + terms * 1e-6", "", "no room for the rounding of terms that cancel"),
        ("high_x = low_x + (WIDTH - 1)", "high_x = low_x + (WIDTH - 2)", "last column of a part not tested"),
        ("high_y = low_y + (HEIGHT - 1)", "high_y = low_y + HEIGHT", "one row more than a part tested"),
        ("slope_y = tl.where(c > 0.0, -0.5 * b", "slope_y = tl.where(c > 0.0, 0.5 * b", "sign of a slope"),
        ("tl.minimum(on_column, on_row) <= level", "on_column <= level", "one of two lines not tested"),
        ("(tiles > LARGE)", "(tiles > LARGE * 8)", "large Gaussians taken for small ones"),
        ("-0.5 * moment[5]", "-moment[5]", "factor 1/2 of one conic entry's gradient"),
        ("c[0] * moment[1] + c[1] * moment[2]", "c[0] * moment[1]", "cross term of the mean's gradient lost"),
        ("tl.abs(g * slope_x)", "g * slope_x", "absolute value lost in absgrad"),
        ("g_dx = sums[0] * at[0]", "g_dx = sums[1] * at[0]", "a column from the sum of g dy"),
        ("sums[1] * at[0], sums[2]", "sums[2] * at[0], sums[2]", "a column from the sum of g dy^2"),
    ),
    *_in(
        "kernels/compositing/footprints/ellipse.py",
        FOLD,
        ("tl.fma(g_dy, at[1], sums[2])", "tl.fma(g_dy, at[1], sums[1])", "sum of another column"),
        ("sums[1] + g_dy", "g_dy", "sums of the blocks before lost"),
    ),
    *_in(
        "kernels/compositing/lists.py",
        PARTS,
        ("part // ACROSS * HEIGHT", "part // ACROSS * WIDTH", "parts taken for squares"),
        ("+ key_bias) % n_tiles", "+ key_bias)", "tiles of later images below the first"),
        ("(intersections.first_tile - 1 -", "(intersections.first_tile -", "off by one in unknown keys"),
        ("- popcount(following, PTX)", "- popcount(following >> 1, PTX)", "off by one in places"),
        ("n_words = n // WORD.value + 1", "n_words = (n + WORD.value - 1) // WORD.value",
         "no word for the end of the last list"),
        ("index.shape, 1, tl.int32", "index.shape, 0, tl.int32", "no list if a tile is one part"),
        ("allocate(offsets)[:-1]", "offsets[:-1]", "ends overwrite where lists begin"),
    ),
    *_in(
        "kernels/compositing/slots.py",
        SLOTS,
        ("has_slot[part].to(tl.int64) << 32", "0", "parts share slots that they do not add to"),
        ("has_slot[part].to(tl.int64) << 32", "reached[part].to(tl.int64) << 32",
         "slots skipped that were not counted"),
        ("places[part] < tl.load", "places[part] <= tl.load", "one slot more than entries that were added"),
        ("list_index += tiles", "pass", "ends of the first part for all"),
        (".to(tl.int32) - first_key", ".to(tl.int32)", "ends of other tiles"),
        ("intersections.first_tile - intersections.key_bias", "intersections.first_tile", "bias of keys ignored"),
        ("(reached[part] & is_added", "(is_added", "slots for intersections that do not reach a part"),
        ("mask=count > 0", "mask=count > 1", "slots lost of intersections with one"),
        ("(index < n_listed) & (reached[part] != 0)", "(index < n_listed) & (has_slot[part] != 0)",
         "rows of entries without a slot not written"),
        ("-MARGIN.value], starts[order.place_starts]", "-MARGIN.value], order.place_starts",
         "spans of intersections for those of slots"),
        ("<< 32 | tl.load", "<< 32 | 0 * tl.load", "rows of entries lost"),
        ("store_margins(entries, index, n_entries)", "pass", "margins of lists of the backward pass not stored"),
        ("records.new_zeros if lists.ends is None else records.new_empty", "records.new_empty",
         "slots of entries that nobody added not zeroed"),
    ),
    *_in(
        "kernels/compositing/lists.py",
        PARTS,
        ("    store_margins(listed, index, n_entries)", "    pass", "margins of lists not stored"),
        ("n_entries + index)", "n_entries + index - MARGIN)", "the margin behind lists overwrites their last entries"),
        ("listed + MARGIN + place", "listed + place", "lists begin in the margin"),
    ),
    *_in(
        "kernels/compositing/slots.py",
        PARTS,
        ("range(0, tl.max(count), UNROLL)", "range(0, tl.minimum(tl.max(count), 1), UNROLL)",
         "only the first spans of a large Gaussian summed"),
        ("!= 0, end - start, 0)", "== 0, end - start, 0)",
         "spans of small Gaussians summed instead of large ones"),
        ("!= 0, end - start, 0)", "!= 0, end - start - 1, 0)", "last slot of a span not summed"),
        ("if longest > 1:", "if longest > 8:", "groups of short spans not summed"),
        ("mask=remaining > 1", "mask=remaining > 2", "spans of two slots not summed"),
        ("program % blocks * COLUMNS + tl.arange(0, COLUMNS)", "tl.arange(0, COLUMNS)",
         "columns from the 17th on not summed over spans"),
        ("total = tl.load(sums + row * SUMS_WIDTH + column, mask=mask, other=0.0)",
         "total = tl.zeros([LANES], sums.dtype.element_ty)",
         "sums of the bands before lost"),
        ("            start = end\n", "", "spans added from the first slot on"),
        ("absgrad_column=footprint.SUMS + n_features", "absgrad_column=sums.shape[1] - 2", "padding taken for absgrad"),
    ),
    *_in(
        "kernels/compositing/walk_steps.py",
        PARTS,
        ("entry >> 32", "entry >> 33", "slots of entries halved"),
    ),
    *_in(
        "kernels/compositing/walk_steps.py",
        FEATURES,
        ("2 * index + 1)", "2 * index)", "rows taken for slots"),
    ),
    *_in(
        "kernels/compositing/matrices_backward.py",
        FEATURES,
        ("place[:, None, None] < last[None]", "place[:, None, None] <= last[None]", "off by one where a pixel stopped"),
        ("tl.where(e_k <= constant(LOG2_ALPHA_MAX, e_k), v_alpha, 0.0)", "v_alpha",
         "gradient flows where alpha is clamped"),
        ("behind = -tl.load(v_render_alphas", "behind = tl.load(v_render_alphas", "sign of alpha's gradient"),
        ("behind *= transmittance", "pass", "background not attenuated at the end of a list of chunks"),
        ("behind *= inverse_transmittance(transmittance, APPROX)", "pass",
         "color behind a chunk not that at its end"),
        ("backgrounds + image * n_colors + channel", "backgrounds + channel", "every image has the first background"),
        ("tl.minimum(tl.max(last), range_end)", "tl.minimum(tl.max(last), range_end - 1)",
         "last entry of a chunk ignored"),
        ("(end_chunk - 1 - step)", "(end_chunk - 2 - step)", "wrong chunks behind"),
        ("place >= begin", "place >= 0", "entries in front of a chunk counted"),
        ("values += tl.load(address", "values = values + 0.0 * tl.load(address",
         "parts overwrite slots that they share"),
        ("y=band.shape.height,", "y=band.shape.width // 2,", "parts of other sizes"),
    ),
    *_in(
        "kernels/compositing/matrices_forward.py",
        FEATURES,
        ("(done + k < end)", "(done + k <= end)", "one entry behind a chunk added"),
        ("done = begin", "done = 0", "chunks start at the first entry of a list"),
        ("(chunk * n_features + channel)", "(chunk * n_colors + channel)",
         "chunks overwrite the depth of others"),
    ),
    *_in(
        "kernels/compositing/matrices.py",
        FEATURES,
        ("channel == n_colors, tl.load(depths + rows), values", "channel == n_colors, 0.0, values", "depth lost"),
    ),
    *_in(
        "kernels/compositing/__init__.py",
        PARTS,
        ("sum_slots(slots.v_slots, slots.slot_starts,", "sum_slots(slots.v_slots, order.place_starts,",
         "spans of intersections for those of slots"),
        ("add=not is_first", "add=False", "sums of the last band only"),
        ("new_empty if n_intersections else splats.means2d.new_zeros", "new_empty", "sums of no intersections unknown"),
    ),
    *_in(
        "kernels/compositing/chunks.py",
        PARTS,
        ("next_row = tl.load(ids + place + 2)", "next_row = tl.load(ids + place + 1)",
         "off by one in the entry two ahead"),
        ("if program + 1 < end_chunk", "if program + 2 < end_chunk", "one product not computed"),
        ("alive = highest > constant(TRANSMITTANCE_MIN, highest)", "alive = tl.max(transmittance) > 0.9",
         "a product ends too early"),
        ("alive = (transmittance > 0.0) & listed", "alive = listed", "chunks added behind a pixel's last"),
        ("tl.where(alive, tl.maximum(last_added[n], last), last)", "tl.where(alive, last_added[n], last)",
         "last entry lost if a later chunk adds nothing"),
        ("range(first_chunk, end_chunk, COMBINED)", "range(first_chunk, end_chunk - 1, COMBINED)",
         "last chunk of a list not added"),
        ("tl.cast(base + n, tl.int64) * n_features + channel + k) * PIXELS + own\n                    kept",
         "tl.cast(base + n, tl.int64) * n_features + k) * PIXELS + own\n                    kept",
         "channels of the first pass zeroed for those of others"),
        ("chunk_colors + address, kept, mask=listed", "chunk_colors + address, kept, mask=listed & alive",
         "chunks behind a pixel's last not zeroed"),
        ("start = tl.load(offsets + index)\n", "start = tl.load(offsets + index) - 1\n",
         "last entry of a cut list ignored"),
        ("inside & is_first,", "inside & (channel > 0),", "transmittance of cut lists not stored"),
    ),
    *_in(
        "kernels/compositing/walks.py",
        PARTS,
        ("backgrounds + image * background_stride + k", "backgrounds + k", "every image has the first background"),
        ("band.walk_arguments(records),\n            records",
         'band.walk_arguments(records) | {"LOG2_ALPHA_MIN": -9.0},\n            records',
         "threshold of alpha lower in the forward pass"),
        ("tl.where(added, place + 1, last)", "tl.where(added, place, last)", "off by one in the last entry"),
        ("next_row = tl.load(ids + place + 2)", "next_row = tl.load(ids + place + 1)",
         "off by one in the entry two ahead"),
        ("lists.chunk_colors[:, first:]", "lists.chunk_colors", "passes overwrite channels of chunks"),
    ),
    *_in(
        "kernels/compositing/walk_steps.py",
        PARTS,
        ("tl.where(e <= constant(LOG2_ALPHA_MAX, e), g, 0.0)", "g", "gradient flows where alpha is clamped"),
        ("(place < last)", "(place <= last)", "off by one where a pixel stopped"),
    ),
    *_in(
        "kernels/compositing/walks.py",
        PARTS,
        ("covered, -loaded_alpha, 0.0", "covered, loaded_alpha, 0.0", "sign of alpha's gradient"),
        ("backgrounds + image * COLORS + k", "backgrounds + k", "every image has the first background"),
        ("range(end_chunk - 1 - program)", "range(end_chunk - 2 - program)", "colors of a later chunk lost"),
        ("end_transmittance = tl.abs(tl.load(chunk_transmittances + chunk * PIXELS + own))", "pass",
         "transmittance behind the whole list taken for a chunk"),
        ("tl.store(out + k, tl.load(out + k) + sums[k])", "tl.store(out + k, sums[k])",
         "parts overwrite slots that they share"),
        ("end_behind *= end_transmittance", "pass", "background not attenuated at the end of a list of chunks"),
        ("end_behind *= inverse_transmittance(end_transmittance, APPROX)", "pass",
         "color behind a chunk not that at its end"),
        ("load_entry(list_entries + end - 2, APPROX)", "load_entry(list_entries + end - 1, APPROX)",
         "last entry of a list composited twice"),
        ("ahead = start + end - 3", "ahead = start + end - 2", "off by one in the entry two ahead"),
        ("                out = element(first_out, slot, COLUMNS, APPROX)\n                slot = next_slot\n",
         "                slot = next_slot\n                out = element(first_out, slot, COLUMNS, APPROX)\n",
         "gradients stored in the slot of the next entry"),
    ),
    *_in(
        "kernels/compositing/walks.py",
        PARTS,
        ("tl.where(covered, loaded[k], 0.0)", "loaded[k]", "gradients of uncovered pixels' colors reach Gaussians"),
        ("tl.where(covered, -loaded_alpha, 0.0)", "-loaded_alpha",
         "gradients of uncovered pixels' alphas reach Gaussians"),
    ),
    *_in(
        "kernels/compositing/walks.py",
        FOLD,
        ("first_out += column", "first_out += 0 * column",
         "all sums stored in the first column"),
    ),
    *_in(
        "kernels/compositing/walks.py",
        STRIDES,
        ("channel_stride=v_render_colors.stride(3)", "channel_stride=1", "channels taken for dense"),
        ("pixel_stride=v_render_colors.stride(2)", "pixel_stride=v_render_colors.shape[3]", "pixels taken for dense"),
        ("image_stride=v_render_colors.stride(0)", "image_stride=v_render_colors[0].numel()", "images taken for dense"),
    ),
    *_in(
        "kernels/device_math.py",
        PARTS,
        ("index.to(tl.int64) * STRIDE", "index.to(tl.int64)", "stride of elements lost"),
    ),
    *_in(
        "kernels/device_math.py",
        FOLD,
        ("[index, size]", "[index, STRIDE]", "elements taken for bytes"),
    ),
    *_in(
        "kernels/compositing/walk_steps.py",
        FOLD,
        ("{$0, $1}, [$2]", "{$1, $0}, [$2]", "row and slot of an entry swapped"),
    ),
    *_in(
        "kernels/compositing/walks.py",
        FOLD,
        ("ahead = ids + begin + 2", "ahead = ids + begin + 1", "off by one in the entry two ahead on NVIDIA GPUs"),
    ),
    *_in(
        "kernels/compositing/records.py",
        PARTS,
        ("color_row = tl.load(color_ids + row, mask=mask, other=0)", "color_row = row", "colors of other Gaussians"),
    ),
    *_in(
        "kernels/compositing/records.py",
        FOLD,
        ("tl.join(values[k], values[k + 2])", "tl.join(values[k], values[k + 1])", "values of wide records swapped"),
    ),
    *_in(
        "kernels/compositing/slots.py",
        FOLD,
        ("found + load4(at + k)", "found + load4(at)", "the last sums read from the first columns"),
    ),
    *_in(
        "kernels/compositing/pixel_sums.py",
        FOLD,
        ("sent, {mask}, 31, -1", "sent, {max(mask, 2)}, 31, -1", "wrong lane in the last step"),
        ("selp.f32 v{i}, v{other}, v{i}, p", "selp.f32 v{i}, v{i}, v{other}, p", "the other half of the values kept"),
        ("(column + after < before)", "(column + after <= before)", "a column too many passed"),
        ("(passed | (bit == 0))", "(bit == 0)", "columns without a first lane"),
    ),
    *_in(
        "kernels/projection/__init__.py",
        _compiled("tests/stages/test_projection.py"),
        ("seen = seen | visible", "seen = visible", "only the last camera's gradient kept"),
        ("v_opacity += tl.where(visible, v_own_opacity, 0.0)", "v_opacity = tl.where(visible, v_own_opacity, 0.0)",
         "a dropped camera in the opacity's gradient"),
        ("v_w2 = add_entry_times(v_w2, row1, 2, v_t1[k], 1, CAMERA)", "v_w2 = v_w2 + 0.0",
         "cross term of the pose's gradient lost"),
        ("v_p[2] + v_depth)", "v_p[2])", "gradient of depth lost"),
        ("visible & (tl.load(valid", "visible | (tl.load(valid", "invalid Gaussians not culled"),
        ("(mean2d[1] - radius_y < height)", "(mean2d[1] - radius_y < width)", "width for height in culling"),
        ("(depth >= constant(near, det))", "(depth > -constant(near, det))", "Gaussians behind the camera rendered"),
        ("finite(outgoing) | (finite(incoming) == 0)", "finite(incoming)", "overflowing gradients not zeroed", 0),
    ),
    *_in(
        "kernels/spherical_harmonics.py",
        _compiled("tests/stages/test_shading.py"),
        ("gy -= v[1] * Y1", "gy += v[1] * Y1", "sign of a direction's gradient"),
        ("14.0 * z * (x * y", "7.0 * z * (x * y", "factor in a degree-4 gradient"),
        ("-tl.sum(v_dir[k])", "tl.sum(v_dir[k])", "sign of the camera center's gradient"),
    ),
    *_in(
        "kernels/intersection.py",
        _compiled("tests/stages/test_intersection.py", "tests/stages/test_bands.py"),
        ("tl.floor(high - 0.5)", "tl.floor(high - 1.5)", "off by one in a tile bound"),
        ("dy_left = tl.minimum(tl.maximum(skew, top), bottom)", "dy_left = tl.minimum(tl.maximum(-skew, top), bottom)",
         "sign of the leftmost point of an ellipse"),
        ("low = tl.maximum(begin - image * tile_height, first)", "low = first", "beginning of a band ignored"),
        ("(key < lane + first_key)", "(key <= lane + first_key)", "lists begin at the end of their tile"),
        ("tl.store(places + lane, index.to", "tl.store(places + lane, lane.to", "places in the order of tiles"),
        ("tl.store(rows + position, row.to(tl.int32)", "tl.store(rows + position, position.to(tl.int32)",
         "Gaussians not in the order of depth"),
        ("max(n, n_tiles + 1),", "n,", "offsets of more tiles than intersections not written"),
    ),
    *_in(
        "kernels/validation.py",
        _compiled("tests/stages/test_validation.py"),
        ("is_valid & _within(opacities + index, mask, 1, MAGNITUDE_MAX)", "is_valid", "opacities not validated"),
        (">= constant(QUAT_NORM_MIN * QUAT_NORM_MIN, square)", ">= 0.0", "zero quaternions accepted"),
        (">= constant(DETERMINANT_MIN, det)", ">= 0.0", "singular cameras accepted"),
        ("tl.abs(k[4 * i])", "tl.abs(k[0])", "focal length of y not checked"),
        ("tl.fma(a[2], b[0], -(a[0] * b[2]))", "(a[2] * b[0] - a[0] * b[2])", "cross product rounds otherwise"),
        ("v[11] * xy[k]) / det", "v[11] * xy[k])", "camera center not divided by the determinant"),
        ("if i == 11 else", "if i == 10 else", "invalid cameras see something"),
    ),
    *_in(
        "kernels_torch/compositing.py",
        _torch("tests/stages/test_compositing.py"),
        ("g *= ~clamped", "pass", "gradient flows where alpha is clamped"),
        ("alpha *= places < last[:, None]", "pass", "gradient flows to Gaussians after a pixel stopped"),
        ("        rest = rest * transmittance", "        pass", "background's gradient not attenuated"),
        ("(columns_dy * dx).sum(0)", "(columns_dy * dy.mean(0)).sum(0)", "wrong moment"),
        ("backgrounds[tile.image]", "backgrounds[0]", "every image has the first background"),
        ("weight *= running", "pass", "a pixel never stops"),
        ("valid &= means2d.isfinite().all(-1)", "pass", "a mean that is NaN spoils its tiles"),
        ("if shown is None or shown[index] else start", "", "tile masks ignored"),
    ),
    *_in(
        "kernels_torch/projection.py",
        _torch("tests/stages/test_projection.py"),
        ("visible &= gaussians.valid.flatten()[ids]", "pass", "invalid Gaussians not culled"),
        ("kept = all_finite(found) | ~all_finite(incoming)", "kept = all_finite(incoming) | True",
         "overflowing gradients not zeroed"),
    ),
    *_in(
        "kernels_torch/camera_models.py",
        _torch("tests/stages/test_projection.py", "tests/kernels/test_camera_models.py"),
        ("0.5 * FOV_MARGIN * extent", "FOV_MARGIN * extent", "margin of the field of view doubled"),
        ("torch.where(behind, -dz, dz)", "dz.abs()", "fisheye: no gradient of the cosine at 90 degrees"),
        ("mixed = m * dx * dy", "mixed = -m * dx * dy", "fisheye: sign of the off-diagonal entry"),
        ("(fx, None, None), (None, fy, None)", "(fx, None, None), (None, fx, None)",
         "ortho: focal length of x in the Jacobian of y"),
    ),
    *_in(
        "kernels_torch/intersection.py",
        _torch("tests/stages/test_intersection.py", "tests/stages/test_bands.py"),
        ("(high - 0.5).floor()", "(high - 1.5).floor()", "off by one in a tile bound"),
        ("band[1] - image_ids * grid.tile_height", "band[1]", "a band's end ignored in later images"),
    ),
    *_in(
        "kernels_torch/validation.py",
        _torch("tests/stages/test_validation.py"),
        ("within.all(1)", "within.any(1)", "a color that is invalid for one camera accepted"),
        ("~(exceeds(viewmats, 2) | ", "~(", "cameras that are not finite accepted"),
        ("t[..., 2, :] * xy) / det", "t[..., 2, :] * xy)", "camera center not divided by the determinant"),
    ),
    *_in(
        "stages/shading.py",
        _torch("tests/stages/test_shading.py"),
        ("(0, -n_channels % 3)", "(-n_channels % 3, 0)", "channels shifted where their number is no multiple of 3"),
    ),
    *_in(
        "kernels_torch/spherical_harmonics.py",
        _torch("tests/stages/test_shading.py"),
        ("return shifted.clamp_min(0), ~(", "return shifted, ~(", "negative colors not clamped"),
    ),
    *_in(
        "stages/shading.py",
        _torch("tests/test_extra_signals.py"),
        ("values if clamp else values + 0.5", "values", "extra signals not shifted"),
        ("sh_degree, backend, clamp=clamp)", "sh_degree, backend, clamp=True)", "negative extra signals clamped"),
        ("others = others if extra.ids is None else others[extra.ids]", "", "extra signals not gathered"),
    ),
    *_in(
        "stages/contributions.py",
        _torch("tests/compat/gsplat/test_contributors.py", "tests/compat/gsplat/test_sparse_pixels.py"),
        ("descending=True, stable=True)", "stable=True).flip(-1)", "of equal weights the farther kept"),
        ("[:, :n_kept].sort(dim=-1).values", "[:, :n_kept]", "largest weights listed by size"),
        ("n_before += contributes.sum(-1, keepdim=True)", "pass", "each block of a list replaces the one before"),
        ("transmittance.abs()[chosen]", "transmittance[chosen]", "pixels that have stopped are more than opaque"),
        ("(places >= 0).nonzero()", "(places >= -1).nonzero()", "pixels that were not chosen in the results"),
    ),
    *_in(
        "stages/contributions.py",
        _torch("tests/compat/gsplat/test_contributions.py"),
        ("min(tile.start + limit, tile.end)", "tile.start + limit", "ranges reach into the next tile"),
        ("torch.cat(rows)[order]", "torch.cat(rows)", "Gaussians of other pixels"),
    ),
    *_in(
        "compat/gsplat/cuda/_contributors.py",
        _torch("tests/compat/gsplat/test_contributors.py"),
        ("rows % max(self.n, 1)", "rows", "rows in place of Gaussians"),
    ),
    *_in(
        "compat/gsplat/cuda/_spherical_harmonics.py",
        _torch("tests/compat/gsplat/test_spherical_harmonics.py"),
        ("fourth.is_floating_point()", "not fourth.is_floating_point()", "masks taken for coefficients"),
    ),
    *_in(
        "compat/gsplat/cuda/_sparse_pixels.py",
        _torch("tests/compat/gsplat/test_sparse_pixels.py"),
        ("places[self.pixel_map] = ", "places[:] = ", "pixels in the order of tiles"),
    ),
    *_in(
        "stages/listing.py",
        _torch("tests/stages/test_intersection.py"),
        ("(2**15 if short else 0)", "(2**14 if short else 0)", "bias of the short key does not match"),
        ("return stable_argsort(depths)", "return depths.argsort(descending=True)", "back to front"),
        ("[:, None] * images.shape[1]", "[:, None]", "rows of the first image taken for those of others"),
        ("stable_sort(keys[begin:end])[1] + begin", "stable_sort(keys[begin:end])[1]",
         "intersections of the first image taken for others"),
        ("stable_argsort(depths[row])", "depths[row].argsort(descending=True)", "packed segments reversed"),
    ),
    *_in(
        "stages/intersection.py",
        _torch("tests/stages/test_intersection.py"),
        (".view(torch.int32)[intersections.flatten_ids]", ".view(torch.int32)[:1].expand(tile_ids.shape)",
         "every intersection's id has the first depth"),
        ("torch.stack([bits, tile_ids], -1)", "torch.stack([tile_ids, bits], -1)", "depth before the tile in ids"),
    ),
    *_in(
        "stages/sparse_gradients.py",
        ("-m", "not interpreter and not triton", "tests/stages/test_sparse_gradients.py"),
        ("% max(self._n_gaussians, 1)", "// max(self._n_gaussians, 1)", "cameras taken for Gaussians"),
        ("v.index_select(0, ids)", "v[: len(ids)]", "gradients of the first Gaussians taken for the visible ones"),
    ),
    *_in(
        "stages/compositing.py",
        _torch("tests/stages/test_compositing.py"),
        ("buffers.colors, buffers.alphas,", "buffers.colors, buffers.transmittances,",
         "transmittance returned as alpha"),
        ("v_depths = v_splats.v_features[:, -1]", "v_depths = v_splats.v_features[:, 0]",
         "gradient of another channel taken for depth"),
        ("transmittances[..., None] * v_render_colors[..., :n_colors]", "v_render_colors[..., :n_colors]",
         "background's gradient not attenuated"),
        ("sum_by_id(v_colors, color_ids, colors.shape[0], unique=len(transmittances) == 1)",
         "v_colors[: colors.shape[0]]",
         "colors' gradients not summed"),
    ),
    *_in(
        "stages/compositing.py",
        SLOTS,
        ("return whole, parts", "return whole._replace(key_bias=0), parts", "bias of keys lost"),
    ),
    *_in(
        "stages/compositing.py",
        _torch("tests/stages/test_compositing.py"),
        ("v_render_colors = transmittances.new_zeros(", "v_render_colors = transmittances.new_ones(",
         "images without a loss have one"),
    ),
    *_in(
        "kernels/compositing/lists.py",
        PARTS,
        (".to(tl.int64) << 32 | value", ".to(tl.int64) << 33 | value", "slots of other intersections"),
    ),
    *_in(
        "stages/compositing.py",
        STRIDES,
        ("image.stride(1) == image.shape[2] * image.stride(2)", "True", "pixels taken for evenly spaced"),
    ),
    *_in(
        "stages/pixels.py",
        _torch("tests/stages/test_compositing.py"),
        ("flatten_ids.numel() > INTERSECTIONS_MAX", "flatten_ids.numel() > 8 * INTERSECTIONS_MAX",
         "entries of parts of tiles not counted in 32 bits"),
    ),
    *_in(
        "stages/memory.py",
        _torch("tests/stages/test_bands.py", "tests/stages/test_memory.py"),
        ("n_intersections * self._bytes_per_intersection", "n_intersections", "bytes per intersection not counted"),
        ("n_intersections > INTERSECTIONS_MAX", "n_intersections > INDEX_MAX",
         "entries of parts of tiles not counted in 32 bits"),
    ),
    *_in(
        "stages/intersection.py",
        _torch("tests/test_rasterization.py"),
        ("(1 << _tile_bits(grid.tiles_per_image)) -", "(2 << _tile_bits(grid.tiles_per_image)) -", "wrong bits of ids"),
    ),
    *_in(
        "stages/listing.py",
        _torch("tests/stages/test_sorting.py"),
        ("(values + np.float32(0.0)).view", "values.copy().view", "-0 before 0"),
        ("bits ^= (bits >> 31) & 0x7FFFFFFF", "pass", "negative values descend"),
        ("keys.astype(np.uint16)", "keys.astype(np.int16)", "low halves as signed integers"),
    ),
    *_in(
        "stages/compositing.py",
        _torch("tests/test_rasterization.py"),
        ("unique=len(transmittances) == 1", "unique=True", "gradients of all images but the last lost"),
    ),
    *_in(
        "stages/intersection.py",
        _torch("tests/stages/test_bands.py", "tests/stages/test_memory.py"),
        ("if end - begin == 1:", "if end - begin <= 2:", "a band of two tile rows not split"),
        ("todo += [(middle, end), (begin, middle)]", "todo += [(begin, middle)]", "a band's second half lost"),
    ),
    *_in(
        "stages/listing.py",
        _torch("tests/stages/test_bands.py", "tests/stages/test_memory.py"),
        ("elif max(n_spans, n_intersections) > INDEX_MAX", "elif n_spans > INDEX_MAX",
         "intersections of a call without a budget not counted"),
        ("torch.int32 if bound <= INDEX_MAX else torch.int64", "torch.int32", "totals in 32 bits"),
    ),
    *_in(
        "stages/listing.py",
        CAPACITY,
        ("room.needed, kind)", "room.needed, 1)", "need of spans lost"),
        ("last_key = first_tile + n_tiles - key_bias", "last_key = first_tile - key_bias",
         "what is behind the last intersection is in the first tile"),
    ),
    *_in(
        "stages/intersection.py",
        CAPACITY,
        ("(self.whole.needed > self.whole.flatten_ids.numel()).any()",
         "(self.whole.needed > self.whole.flatten_ids.numel()).all()", "overflow of one kind of list not seen"),
        ("flatten_ids=whole.flatten_ids[:n]", "flatten_ids=whole.flatten_ids", "meta has rows of no intersection"),
        ("capacity if len(screen.order) else None", "None", "the call counts first"),
    ),
    *_in(
        "stages/capacity.py",
        ("-m", "not interpreter and not slow", CAPACITY[-1]),
        ("if needed > call.capacity:", "if needed >= call.capacity:", "lists that just fit refused"),
        ("if needed > call.capacity:", "if False:", "overflow not reported"),
        ("needed > FULL * call.capacity", "needed > call.capacity", "no larger capacity before lists overflow"),
        ("_automatic.setdefault(key, UNKNOWN * n + 1)", "_automatic.setdefault(key, n)", "lists of parts not foreseen"),
        ("_automatic.get((device, grid))", "next(iter(_automatic.values()), None)", "need of images of another size"),
        ("_unknown[0].done.query()", "True", "a call waits for an earlier one"),
        ("call.done.synchronize()", "pass", "a need is read before the device is done"),
        ("if needed.is_cuda and torch.cuda.is_current_stream_capturing():", "if False:", "events in a captured graph"),
    ),
    *_in(
        "stages/operators.py",
        ("tests/stages/test_operators.py",),
        ("t.is_contiguous() and t.nbytes == t.untyped_storage().nbytes() and _address(t) not in taken", "True",
         "outputs that share memory"),
        ("_offset(t) - offset + saved.offset", "saved.offset", "offsets of inputs"),
        ("None if t is None else t.detach() for t in tensors", "t for t in tensors", "inputs kept by autograd"),
        ("self._inputs, self._saved = [], {}", "pass", "inputs kept by hooks"),
        ("return kinds, tuple(needs), settings, stream", "return kinds, settings, stream", "gradients of another call"),
        ("with self._lock, _autograd():", "with self._lock:", "no autograd inside of modes"),
        ("is None else _own(gradient)", "is None else gradient", "gradients that share memory"),
        ("if recording is None:", "if False:", "backward pass of a recording that was dropped"),
        ("if len(self._recordings) >= KEPT_MAX:", "if False:", "recordings of every size kept"),
        ("int(value) if isinstance(value, torch.SymInt) else value", "value", "symbolic sizes of images"),
    ),
    *_in(
        "stages/meta.py",
        ("tests/stages/test_operators.py",),
        ("meta.copy()", "meta", "values that are computed while torch.compile reads them"),
        ('a["validate"] != "error" and', "", "a wait inside of a graph"),
        ('("packed", "sparse_grad", "absgrad", "distributed")', '("packed", "sparse_grad", "distributed")',
         "an attribute set inside of a graph"),
    ),
    *_in(
        "kernels/compositing/lists.py",
        PARTS,
        ("tl.where(index < n_lists, count, first)", "tl.where(index < n_lists, count, 0)", "number of entries lost"),
        ("LONGEST=int(CUT * chunk)", "LONGEST=chunk", "lists cut that are a little longer than a chunk"),
        ("(length + (CHUNK - 1)) // CHUNK", "length // CHUNK", "end of a list in no chunk"),
        ("tl.minimum(index, n_lists - 1) // tiles", "index // tiles", "no end of the last list"),
        ("max(values.numel(), lists.n_chunks)", "values.numel()", "chunks without a list where they are many"),
    ),
    *_in(
        "kernels/compositing/sizes.py",
        CAPACITY,
        ("fits = total <= capacity", "fits = total < capacity", "lists that just fit are empty"),
        ("tl.store(words + index, tl.where(fits, word, 0), mask=mask)", "tl.store(words + index, word, mask=mask)",
         "parts reached by lists that are empty"),
        ("total.to(tl.int64) + per_intersection - 1", "total.to(tl.int64)", "need rounded down"),
    ),
    *_in(
        "kernels/compositing/lists.py",
        CAPACITY,
        ("index < tl.minimum(tl.load(end), n)", "index < n", "parts of no intersection"),
        ("limit_starts(totals, n * entries, intersections.needed, 2, words, entries)", "totals",
         "entries out of bounds"),
    ),
    *_in(
        "stages/validation.py",
        _torch("tests/stages/test_validation.py"),
        ("v_viewmats = v_viewmats + torch.autograd", "v_viewmats = torch.autograd", "gradient of view matrices lost"),
        ("torch.where(valid[..., None, None], v_viewmats, 0.0)", "v_viewmats", "gradient of a replaced camera kept"),
        ("(opacities < 0) | (opacities > 1)", "(opacities < 0)", "opacities above 1 accepted"),
    ),
    *_in(
        "stages/validation.py",
        ("tests/stages/test_cameras.py",),
        ("_mark_invalid(cameras, others) if check and others else cameras", "cameras", "invalid lenses see something"),
        ("torch.where(valid[(..., *[None] * (t.dim() - 2))], t, 0.0)", "t", "invalid lenses reach kernels"),
    ),
    *_in(
        "stages/settings.py",
        _torch("tests/test_rasterization.py"),
        ("options, types) if PLAIN.issuperset(types) else _check(options)", "options, ())", "1 is True"),
        ("o.height, o.camera_model, *planes", 'o.height, "pinhole", *planes', "the camera model ignored"),
        ('antialiased=o.rasterize_mode == "antialiased"', "antialiased=False", "antialiasing ignored"),
    ),
    *_in(
        "rasterization.py",
        _torch("tests/test_rasterization.py"),
        ("alphas.clamp_min(DEPTH_ALPHA_MIN)", "alphas.clamp_min(0.5)", "expected depth of thin pixels"),
    ),
    *_in(
        "training/losses.py",
        ("tests/training/test_losses.py",),
        ("self.surfels and progress >= NORMAL_START", "self.surfels", "normal consistency from the start"),
        ("progress >= DISTORTION_START", "progress > NORMAL_START", "distortion as late as normals"),
        ('meta["surf_normals"] * alpha)', 'meta["surf_normals"])', "normals of depth maps not weighted by alpha"),
        ("alpha = alphas[0].detach()", "alpha = alphas[0]", "gradient of alpha by normals"),
        ("torch.where(view.mask, term, 0.0)", "term", "masked pixels in losses of surfaces"),
        ("> 0.5) & view.mask", "> 0.5)", "masked pixels in priors of depth"),
        ("covered & prior.isfinite()", "covered", "unknown depths of priors used"),
        ("(y.sum() / n + scale * dx)", "(scale * dx)", "priors of depth without shift"),
        ("view.camera.viewmat[:3, :3]).sum(-2)", "view.camera.viewmat[:3, :3].T).sum(-2)",
         "priors of normals turned the wrong way"),
        ("torch.where(known, 1 - (normals * prior).sum(-1), 0.0)", "1 - (normals * prior).sum(-1)",
         "unknown normals of priors used"),
    ),
    *_in(
        "training/runs/priors.py",
        ("tests/training/runs/test_priors.py",),
        ("2 * (array / largest) - 1", "array / largest", "normals of PNGs from 0 to 1"),
        ("files=(*view.files, path)", "files=view.files", "changed priors resumed with"),
        ("* min(view.width, view.height) > 2", "* 0 > 2", "priors of another aspect ratio stretched"),
    ),
    *_in(
        "training/parameters.py",
        ("tests/training/test_trainer.py", "-k", "2d"),
        ('self.params["scales"].detach()[:, 2] = FLAT', "pass", "third scale of discs trained"),
        ('key_for_gradient", "") == "means2d"', 'key_for_gradient", "") == ""', "discs densified by their filter"),
    ),
    *_in(
        "training/densification.py",
        ("tests/training/test_trainer_ranks.py", "-k", "surfels"),
        ("first[key].retains_grad or first[key].is_leaf", "first[key].retains_grad", "no gradient of several views"),
    ),
    *_in(
        "training/trainer.py",
        ("tests/training/test_trainer.py", "-k", "2d or surface"),
        ("self._geometry_loss.needs_depth(self._progress)", "config.depth_weight > 0", "normals without a depth map"),
    ),
    *_in(
        "scene/gaussians.py",
        ("tests/scene/formats/test_models.py", "-k", "2d"),
        ("flat[:, 2].all()", "flat.any()", "one small scale makes discs"),
        (" and not bool(flat.all())", "", "dots taken for discs"),
        ("return 2 if self.surfels else 3", "return 3", "files of 2DGS with three scales"),
    ),
    *_in(
        "scene/formats/ply.py",
        ("tests/scene/formats/test_models.py", "-k", "2d"),
        ("if is_flat or mode == SURFELS else gaussians", "if is_flat else gaussians", "comment ignored"),
        ("if is_flat or mode == SURFELS else gaussians", "if mode == SURFELS else gaussians", "two scales ignored"),
    ),
    *_in(
        "scene/cameras.py",
        ("tests/training/test_trainer.py", "-k", "2d"),
        ('model != "pinhole" or lens', 'model != "pinhole"', "distortion ignored by 2D Gaussians"),
    ),
    *_in(
        "viewing/videos.py",
        ("tests/viewing/test_videos.py",),
        ("2 * image - alphas[0]", "image", "normals of colors"),
    ),
    *_in(
        "rasterization.py",
        SURFELS,
        ("note_need(intersections.whole, options.capacity, request.grid)", "pass", "lists that do not fit not noticed"),
        ("conics=with_screen_gradient(projected.conics, densify.view(-1, 2))", "", "no gradient for densification"),
    ),
    *_in(
        "kernels/image_loss.py",
        ("-m", "triton", IMAGE_LOSS),
        ("2.0 * a * by_square", "a * by_square", "factor 2 of the square's gradient lost"),
        ("(plane * height + r)", "(plane // n_channels * n_channels * height + r)",
         "gradients of all channels stored in the first plane"),
        ("return v_image.movedim(1, -1)", "return v_image.reshape(image.shape)", "planes taken for channels"),
        ("(place <= 2 * RADIUS)", "(place < 2 * RADIUS)", "the window's last tap lost"),
        ("sums + n_programs + program", "sums + program", "the sum of SSIM is that of L1"),
        ("program < n_programs, other", "program < n_programs - 1, other", "the last program's sum of L1 lost"),
        ("1.0 - ssim_weight, dtype), size)", "ssim_weight, dtype), size)", "L1's gradient weighted as SSIM"),
        ("scale += tl.load(v_loss)", "scale = tl.load(v_loss)", "the gradient of L1 lost where the loss has one"),
        ("(r < height - RADIUS)", "(r <= height - RADIUS)", "one window too many at the lower edge"),
    ),
    *_in(
        "compat/gsplat/cuda/_adam.py",
        CLIENTS,
        ("values.copy_(contiguous)", "pass", "parameters of other strides not updated"),
    ),
    *_in(
        "compat/gsplat/optimizers/selective_adam.py",
        CLIENTS,
        ('            check_adam(parameter, parameter.grad, moments, "visibility", visibility)\n', "",
         "groups not checked before the first update"),
    ),
    *_in(
        "kernels/adam.py",
        ("-m", "triton", ADAM),
        ("place // width", "place", "visibility indexed by element instead of Gaussian"),
        ("g * g * one_minus_beta2", "g * one_minus_beta2", "square of the gradient lost"),
        ("len(parameters).bit_length()", "len(parameters).bit_length() - 1", "the search for a parameter ends early"),
        ("(program - tl.load(row)) *", "program *", "programs after the first parameter begin too late"),
        ("tl.load(table + middle * WORDS) <=", "tl.load(table + middle * WORDS) <", "the first program of a parameter"),
    ),
    *_in(
        "kernels/mcmc_step.py",
        ("-m", "triton", "tests/kernels/test_mcmc_step.py"),
        ("1e-12)", "1e-20)", "quaternions of zero norm are no rotation"),
        ("1.0 - t, dtype", "t, dtype", "noise added to opaque Gaussians"),
        ("s1 * s1 * along[1]", "s1 * along[1]", "noise with another covariance"),
        ("(1.0 - o) * o", "(1.0 - o)", "gradient of the mean opacity"),
        ("scale_factor, s.dtype) * s", "scale_factor, s.dtype)", "gradient of the mean scale"),
    ),
    *_in(
        "training/trainer.py",
        ("tests/training/test_trainer.py",),
        ('factor * weights["scales"] / 3', 'factor * weights["scales"]', "mean scale weighted three times"),
        ("        self._parameters.clear_gradients()\n", "", "gradients of images that overflowed kept"),
        ("            self._gains.discard()\n", "            pass\n", "gains of images that overflowed kept"),
        ("any(self.ranks.any([any_overflow(calls)], self.device))", "any([])", "overflow in a step ignored"),
    ),
    *_in(
        "training/trainer.py",
        ("tests/training/test_trainer_ranks.py", "-k", "capacity"),
        ("self.ranks.any([any_overflow(calls)], self.device)", "[any_overflow(calls)]",
         "overflow of another rank ignored"),
    ),
    *_in(
        "kernels_torch/image_loss.py",
        ("-m", "not interpreter and not triton", IMAGE_LOSS),
        ("(mean_x * ssim - mean_y * luminance)", "(mean_x * ssim)", "cross term of SSIM's gradient lost"),
    ),
    *_in(
        "scene/capture/lenses.py",
        LENSES,
        ("[1.0, *((2 * i + 3) * k", "[1.0, *((2 * i + 1) * k", "fisheye: derivative of the distortion"),
        ("theta < self._max_theta", "theta < 4.0", "fisheye: pixels beyond 90 degrees not masked out"),
        ("zoom = self._zoom()", "zoom = 1.0", "fisheye: empty borders, or a part of the field of view lost"),
    ),
    *_in(
        "scene/cameras.py",
        ("tests/training/test_trainer.py",),
        ('"camera_model": first.model, ', '"camera_model": "pinhole", ', "camera model of a view ignored"),
    ),
    *_in(
        "training/trainer.py",
        ("tests/training/runs/test_live_view.py",),
        ("            observer.after_step(progress)\n", "            pass\n", "observers not told of a step"),
    ),
    *_in(
        "training/runs/report.py",
        ("tests/training/runs/test_report.py",),
        ('if metrics.get("steps") == checkpoint.step:', "if True:", "results of another step reported"),
    ),
    *_in(
        "viewing/markup.py",
        ("tests/viewing/test_markup.py",),
        ('else escape(values[name])', "else str(values[name])", "values of templates not escaped"),
        ("{**values, **inner}", "{**inner, **values}", "values of a section hidden by those around it"),
    ),
    *_in(
        "strategies/operations.py",
        STRATEGIES,
        ("append(moment[~mask])", "append(moment[: int((~mask).sum())])",
         "moments of other Gaussians kept"),
        ("both - LOG_SPLIT", "both", "scales of split Gaussians not reduced"),
    ),
    *_in(
        "strategies/default.py",
        STRATEGIES,
        ("0.5 * info", "info", "factor 1/2 of the screen's units lost"),
        ("high & small, high & ~small", "high & ~small, high & small", "large Gaussians cloned, small ones split"),
        ("log_scales - LOG_SPLIT", "log_scales", "split Gaussians counted as pruned"),
        ("step % self.reset_every >= self.pause_refine_after_reset", "True", "refinement not paused after a reset"),
        ("added[order].cumsum(0) <=", "order.new_tensor(range(1, len(order) + 1)) <=",
         "cap ignores that a Gaussian may be cloned and split"),
    ),
    *_in(
        "strategies/relocation.py",
        STRATEGIES,
        ("math.comb(n, k)", "math.comb(n, k + 1)", "off by one in the binomials of relocated scales"),
    ),
    *_in(
        "data.py",
        _torch("tests/test_rasterization.py"),
        ("dense_ids // (self.n_cameras * n_gaussians) * n_gaussians + ", "",
         "every batch has the first batch's colors"),
        ("depths = projected.depths if", "depths = projected.depths * 2 if", "depth doubled"),
        ("ids.sort(stable=True)", "ids.sort(descending=True)", "sums of gradients at wrong indices"),
    ),
    *_in(
        "stages/agreement.py",
        EXCHANGE,
        ("any(gradients), any", "all(gradients), any", "no gradients unless every rank wants them"),
        ('ranks.exchange_records([0] * N_COUNTS, {"error": text})', "pass", "error not sent to other ranks"),
        ('        "grad mode": torch.is_grad_enabled(),\n', "", "a setting not compared between ranks"),
    ),
    *_in(
        "stages/agreement.py",
        EXCHANGE,
        ('per Gaussian": None if values is None else list(values.shape[1:])', 'per Gaussian": None',
         "numbers of channels not compared"),
    ),
    *_in(
        "stages/agreement.py",
        ("tests/stages/test_cameras.py",),
        ('per camera"] = None if values is None else list(values.shape[1:])', 'per camera"] = None',
         "tensors of cameras not compared"),
    ),
    *_in(
        "stages/inputs.py",
        ("tests/stages/test_cameras.py",),
        ("if not field.differentiable:", "if False:", "missing gradient of cameras not refused"),
        ("[*batch, n_cameras, *field.shape]", "[*batch, None, *field.shape]", "number of intrinsics not checked"),
    ),
    *_in(
        "stages/exchange.py",
        EXCHANGE,
        ("[0, *accumulate(ranks.n_gaussians)][:-1]", "[0] * ranks.world_size",
         "every rank's Gaussians counted from zero"),
        ("dense_ids, order = (camera_ids", "dense_ids, order = (-camera_ids", "cameras in another order"),
        ("index_copy_(0, order, v)", "index_copy_(0, order.flip(0), v)", "gradients of other projected Gaussians"),
        ("*field.shape).sum(0)", "*field.shape)[ranks.rank]", "other ranks' gradient of a camera lost"),
        ("torch.zeros_like(columns[0]) if absgrad is None else absgrad", "torch.zeros_like(columns[0])",
         "absgrad lost in the backward exchange"),
        ("received_means2d.append(weakref.ref(means2d))", "received_means2d.append(lambda: means2d)",
         "reference cycle that keeps the graph alive"),
    ),
]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", type=int, help="number of mutants, drawn at random (default: all)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sample")
    parser.add_argument("--only", help="mutants whose path or description contains this")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one per core)")
    parser.add_argument("--write", action="store_true", help="save the results for the scoreboard")
    arguments = parser.parse_args()
    chosen = [m for m in MUTANTS if not arguments.only or arguments.only in f"{m.path} {m.what}"]
    if arguments.sample:
        chosen = random.Random(arguments.seed).sample(chosen, min(arguments.sample, len(chosen)))
    caught = 0
    survivors = []
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        for mutant, (dead, seconds) in zip(chosen, pool.map(is_caught, chosen)):
            caught += dead
            verdict = "caught" if dead else "SURVIVED"
            print(f"{verdict:8}  {seconds:5.1f} s  {mutant.name}", flush=True)
            if not dead:
                survivors.append(mutant.name)
    print(f"{caught} of {len(chosen)} caught")
    if arguments.write:
        # Mutants that were not run this time keep their verdict.
        older = json.loads(RESULTS.read_text()).get("mutants", {}).get("survivors", []) if RESULTS.exists() else []
        again, known = {m.name for m in chosen}, {m.name for m in MUTANTS}
        survivors += [name for name in older if name in known - again]
        record = {"tried": len(MUTANTS), "caught": len(MUTANTS) - len(survivors), "survivors": survivors}
        write_record("mutants", record)
    return 0 if caught == len(chosen) else 1


def is_caught(mutant: Mutant) -> tuple[bool, float]:
    """Runs the tests on a copy of the package with the bug. Returns whether one failed, and the seconds it took."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        ignored = shutil.ignore_patterns("__pycache__", "cases")
        for name in ("tsplat", "tests", "benchmarks", "docs", "emulator"):
            shutil.copytree(ROOT / name, copy / name, ignore=ignored)
        shutil.copy(ROOT / "pyproject.toml", copy)
        mutant.apply(copy / "tsplat")
        environment = os.environ | {"PYTHONPATH": folder, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        environment["HYPOTHESIS_PROFILE"] = "mutants"
        environment["TRITON_INTERPRET"] = "1" if "interpreter" in mutant.tests else "0"
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-x",
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:xdist",
            *mutant.tests,
        ]
        try:
            found = subprocess.run(
                command, cwd=copy, env=environment, capture_output=True, text=True, check=False, timeout=TIMEOUT
            )
        except subprocess.TimeoutExpired:
            # A test that hangs has failed.
            return True, time.perf_counter() - began
    if found.returncode < 0:
        # A kernel that accesses memory out of bounds crashed the process.
        return True, time.perf_counter() - began
    # 1 means that a test failed, 0 that all passed, and anything else that the tests could not run.
    if found.returncode not in (0, 1):
        raise SystemExit(f"{mutant.name}: the tests did not run\n{found.stdout[-2000:]}{found.stderr[-500:]}")
    return found.returncode == 1, time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(main())
