"""Distortion and median of the last feature z of a pixel, computed by the walks.

Distortion is the sum of w_i w_j |z_i - z_j| over all i and j, for ascending z (Huang et al., "2D Gaussian Splatting",
arXiv 2403.17888, equation 13). With the sums A of w and B of w z over the Gaussians in front, a Gaussian adds
2 w (z A - B). B is the channel of z so far. A equals 1 - T, but is summed separately, as the rounding error of 1 - T is
large relative to a small A. In a chunk, B starts at 0. When chunks are added up, the B of the chunks in front, times
twice the decrease of T in the chunk, is subtracted.

Back to front, with the sum B' of w z behind a Gaussian, T' behind it and T_end behind all, the derivatives are
2 (z (A - A') + B' - B) by w and 2 w (A - A') by z, where A - A' = 1 + T_end - T - T'. With S the sum of all w z,
B' - B = 2 B' - S + w z. The state of a walk is (2 v, 1 + T_end, 2 B' - S), with the gradient v of the distortion.

The median is z of the last Gaussian with T > 1/2 in front of it. The walk stores its row; the stage gathers z.
"""

import triton
import triton.language as tl


@triton.jit
def add_distortion(blended, color, median, entry, z, weight, added, transmittance):
    """Adds a Gaussian to the distortion and to the sum of w, which follow the blended features.

    Args:
        blended: The features of the pixel, with the Gaussian.
        color: The features, the distortion and the sum of w of the pixel, without the Gaussian.
        median: Index of the median's entry, plus 1.
        transmittance: T in front of the Gaussian, negative if the pixel has stopped.

    Returns:
        The features, the distortion and the sum of w, with the Gaussian; the updated ``median``.
    """
    N: tl.constexpr = len(blended)
    # D <- D + 2 w (z A - B);  A <- A + w
    term = 2.0 * tl.fma(z, color[N + 1], color[N - 1] * -1.0)
    mixed = tl.where(added, tl.fma(weight, term, color[N]), color[N])
    total = tl.where(added, color[N + 1] + weight, color[N + 1])
    # A Gaussian with alpha 0 counts as added, but cannot be the median.
    return blended + (mixed, total), tl.where(added & (weight > 0.0) & (transmittance > 0.5), entry + 1, median)


@triton.jit
def store_medians(images, chunks, ids, median, pixel, part_pixel, inside, chunk, is_chunk, PIXELS: tl.constexpr):
    """Stores the rows of medians, or -1: of a chunk by pixel of the part, of a whole list in the images."""
    row = tl.load(ids + median - 1, mask=median > 0, other=-1)
    if chunks.median_rows is not None:
        if is_chunk:
            tl.store(chunks.median_rows + chunk * PIXELS + part_pixel, row)
    tl.store(images.median_rows + pixel, row, mask=inside)


@triton.jit
def begin_distortion(depth_sums, pixel, inside, v, transmittance):
    """Returns the state behind all Gaussians. ``depth_sums`` [I, height, width] is S, the transmittance is T_end."""
    return 2.0 * v, 1.0 + transmittance, -tl.load(depth_sums + pixel, mask=inside, other=0.0)


@triton.jit
def distortion_of_chunks(state, z_behind, distortion_behind, transmittance):
    """Returns the state behind a chunk, and the sum of w v_w over the Gaussians behind it, with the gradient v_w of w.

    Args:
        state: The state behind all Gaussians.
        z_behind, distortion_behind: The channels of the chunks behind, added up.
        transmittance: T behind the chunk.
    """
    fall = transmittance - (state[1] - 1.0)
    z_in_front = -state[2] - z_behind
    between = z_behind * (1.0 - transmittance) - z_in_front * fall
    return (state[0], state[1], 2.0 * z_behind + state[2]), state[0] * (distortion_behind - between)


@triton.jit
def distortion_vjp(state, v_color, z, weight, front, back):
    """Removes a Gaussian from the state, back to front, given T in front of it and behind it.

    Returns:
        The state in front of the Gaussian; the gradient of its features, divided by its weight; the term of the
        gradient of its weight that is not v . c.
    """
    added = weight * z
    last: tl.constexpr = len(v_color) - 1
    seen = v_color[:last] + (tl.fma(state[0], state[1] - front - back, v_color[last]),)
    return (state[0], state[1], tl.fma(2.0, added, state[2])), seen, state[0] * (state[2] + added)
