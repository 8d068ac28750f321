"""Passes: a call with the cache key of an earlier call replays the launches of the stages instead of running them.

The first call with a cache key runs the stages. The second call is traced: its launches and operators become passes,
one forward and up to two backward, whose tensors have offsets in arenas. The second and later calls replay these passes
at new addresses, with the same bits. If grad mode is off and no capacity is given, the third call is traced again, with
lists of the sizes that the second call has measured.

**The data** of a traced call with two inputs, one image and five internal tensors:

    bases     0, 1  the inputs `means` and `colors`, as the caller passes them
              2, 3  the outputs `image` and `means2d`, allocated for each call
              4     the saved arena, allocated for each call
              5     the scratch arena, which calls on a CPU share

    step             0      1      2      3      bytes   base, offset
    conics         write          read              96   4, 0           the backward pass reads it
    depth order    write  read                      64   4, 128         not needed any more when `records` is written
    records                       write  read      128   4, 128         the backward pass reads it
    keys                  write   read             256   5, 0
    sorted keys                   write  read      256   5, 256         written while `keys` is read

Each pointer in the arguments of a launch is the address of a base plus an offset. A replay adds the addresses of the
bases of a call to the offsets of all launches at once, and launches the kernels.

**The terms**:

    step        a launch, a PyTorch operator, a NumPy function or a fill with zeros or constants, as recorded by a trace
    storage     the memory of a tensor of the trace, and of all views of it
    lifetime    the first and the last step that use a storage
    base        an input, an output, an incoming gradient or an arena: memory that contains storages
    arena       one allocation for many storages; storages share memory if their lifetimes do not overlap
    view        a tensor of the trace, as an offset from a base
    pass        the steps from inputs to images, from images to ``means2d``, or from ``means2d`` to inputs
    hand over   to pass a gradient from the first backward pass to the second one
    carrier     an empty tensor between both autograd nodes, whose gradient is an arena of handed-over gradients
    runner      runs the passes of a traced call: launches them one by one, or replays CUDA graphs of them

**The files**, in the order of a call: `replay_cache` computes cache keys, and decides which calls are replayed.
`call_traces` traces a call, `traced_calls` assigns its tensors to bases by means of `arenas`, and `replay` makes the
passes. `calls` runs them and connects their results by two autograd nodes; `replayed_meta` has the lazy values of
``meta``. `graphed_calls` and `captured_calls` replay CUDA graphs instead. `traced_functions` traces other functions,
such as a step of training.
"""

from .replay_cache import replayed

__all__ = ["replayed"]
