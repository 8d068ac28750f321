"""Distortion and median of the last feature z of a pixel, which the walks compute as they blend.

Distortion is the sum of w_i w_j |z_i - z_j| over all i and j, for z ascending (Huang et al., "2D Gaussian Splatting",
arXiv 2403.17888, equation 13). With the sums A of w in front of a Gaussian, and B of w z, which is what its channel has
so far, it adds 2 w (z A - B): a channel whose color depends on the pixel. A is 1 - T, but not made of T, whose rounding
is not small where little is in front. In a chunk, B starts at 0; what chunks in front have of it is subtracted when
chunks are added, times twice what T falls by in the chunk.

Back to front, with the sum B' of w z behind a Gaussian, T' behind it and T_end behind all, its derivative is
2 (z (A - A') + B' - B) by w and 2 w (A - A') by z, where A - A' = 1 + T_end - T - T'. With S the sum of all w z,
B' - B = 2 B' - S + w z. A walk keeps (2 v, 1 + T_end, 2 B' - S), with v the gradient of the pixel's distortion.

The median is z of the last Gaussian with T > 1/2 in front of it. Its row is found; the stage takes z of it.
"""

import triton
import triton.language as tl


@triton.jit
def add_distortion(blended, color, median, entry, z, weight, added, transmittance):
    """Appends the distortion and the sum of w to blended features. Updates the index of the median's entry, plus 1.

    Args:
        color: What a pixel had before, features and what is appended.
        transmittance: T in front of the Gaussian, negative if the pixel has stopped.
    """
    N: tl.constexpr = len(blended)
    term = 2.0 * tl.fma(z, color[N + 1], color[N - 1] * -1.0)
    mixed = tl.where(added, tl.fma(weight, term, color[N]), color[N])
    total = tl.where(added, color[N + 1] + weight, color[N + 1])
    # The alpha of an added Gaussian may be zero.
    return blended + (mixed, total), tl.where(added & (weight > 0.0) & (transmittance > 0.5), entry + 1, median)


@triton.jit
def store_medians(images, chunks, ids, median, pixel, part_pixel, inside, chunk, is_chunk, PIXELS: tl.constexpr):
    """Stores the rows of medians, -1 where there is none; of a chunk by the index of the pixel in the part."""
    row = tl.load(ids + median - 1, mask=median > 0, other=-1)
    if chunks.median_rows is not None:
        if is_chunk:
            tl.store(chunks.median_rows + chunk * PIXELS + part_pixel, row)
    tl.store(images.median_rows + pixel, row, mask=inside)


@triton.jit
def begin_distortion(depth_sums, pixel, inside, v, transmittance):
    """Returns the state behind all Gaussians. ``depth_sums`` [I, height, width] are sums of w z; T is T_end."""
    return 2.0 * v, 1.0 + transmittance, -tl.load(depth_sums + pixel, mask=inside, other=0.0)


@triton.jit
def distortion_of_chunks(state, z_behind, distortion_behind, transmittance):
    """Returns the state behind a chunk, and the sum over the Gaussians behind it of w times the gradient of w.

    Args:
        state: Behind all Gaussians.
        z_behind, distortion_behind: Sums of what the chunks behind add.
        transmittance: T behind the chunk.
    """
    fall = transmittance - (state[1] - 1.0)
    z_in_front = -state[2] - z_behind
    between = z_behind * (1.0 - transmittance) - z_in_front * fall
    return (state[0], state[1], 2.0 * z_behind + state[2]), state[0] * (distortion_behind - between)


@triton.jit
def distortion_vjp(state, v_color, z, weight, front, back):
    """Takes a Gaussian out of the state, back to front, with T in front of the Gaussian and behind it.

    Returns:
        The state in front of it; the gradient of the features of the pixel, as this Gaussian sees it; what else is in
        the gradient of its weight.
    """
    added = weight * z
    last: tl.constexpr = len(v_color) - 1
    seen = v_color[:last] + (tl.fma(state[0], state[1] - front - back, v_color[last]),)
    return (state[0], state[1], tl.fma(2.0, added, state[2])), seen, state[0] * (state[2] + added)
