r"""Front-to-back compositing of the Gaussians of each tile, forward and backward. Read this page first.

**The idea.** Color of a pixel (Kerbl et al., "3D Gaussian Splatting", 2023, equations 2 and 3): sum of w_i c_i + T
background, with w_i = alpha_i T_i, alpha_i = min(alpha_max, o exp(-sigma)) and T_i the product of 1 - alpha_j over
j < i. One program, of one warp, renders one part of a tile, the parts with the longest lists first. It walks the part's
list one Gaussian after the other, and loads each record while it blends the one before. Very long lists are cut into
chunks, each with a program of its own: the product of 1 - alpha over each chunk comes first and gives T where the next
one starts; the colors of chunks are added in the end.

The backward pass walks back to front, starting from the remaining transmittance and dividing 1 - alpha out again. One
recurrence replaces a buffer per channel. With v the gradient of the pixel, let behind_i = (sum over j > i of
w_j (v . c_j) + T_end (v . background - v_alpha)) / T_(i + 1), which belongs to the color that shows behind Gaussian i.
Then dL/d alpha_i = T_i (v . c_i - behind_i), and behind_(i - 1) = behind_i + alpha_i (v . c_i - behind_i). (Front to
back, the sum would be a difference of large numbers.) The gradients of a Gaussian are linear in sums over pixels of
g = alpha dL/d alpha times functions of the pixel. A program writes these sums to the slot of the list's entry, and
`sums` adds the slots of a Gaussian. There are no atomics, so results are bit-reproducible.

**The data**, of one tile with two parts and the intersections A, B and C, front to back:

    rows           A B C           projected Gaussians; a record for each           records
    intersections  A B C           of the tile, sorted by depth                     (made by the stage before)
                   |\ \|
    lists      A B | A C |         of part 0 and part 1; their entries are rows     lists
               ----+-----+
    chunks     A,B | A,C |         pieces of a list, if it is long                  chunks
                v     v
    images         pixels, and of each list where its walk ended                    forward, matrices_forward
                v     v
    slots      A A | B | C         an entry each, those of a Gaussian side by side  slots, backward, matrices_backward
                \/
    sums       A     B   C         added in a fixed order; then gradients           sums

**The words**, each with one meaning:

    row         a projected Gaussian, as an index; rows of tiles or pixels are called tile rows and pixel rows
    record      what compositing reads of a row, side by side in memory: values of its footprint, opacity, features
    footprint   what a kind of splat is at a pixel, see `footprints`; nothing else here depends on it
    part        rectangle of a tile's pixels, composited by one program
    list        the rows that may reach a part, front to back
    entry       an element of a list; in the backward pass, a row and a slot
    chunk       piece of a long list, composited by a program of its own
    order       in which programs take the lists
    Gaussian-major  order of intersections: by Gaussian, then by span; an index in it, or in a list, is a place
    span        what a Gaussian intersects of one tile row
    slot        where the backward pass writes the sums of an entry over the part's pixels
    moment      one of the ellipse's sums over pixels of g

**The files**, in the order of a call: `launchers` calls `records`, `lists`, `forward` (from 16 channels on
`matrices_forward`, with `matrices`), which call `chunks` where lists are cut; then `slots`, `backward` (or
`matrices_backward`) and `sums`. `pixel_math` and `warp_sums` are device functions of both walks.
"""

from .launchers import bytes_per_intersection, composite_bwd, composite_fwd
from .sums import composite_gradients, sum_columns

__all__ = ["bytes_per_intersection", "composite_bwd", "composite_fwd", "composite_gradients", "sum_columns"]
