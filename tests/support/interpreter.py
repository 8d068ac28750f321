"""Patches Triton's interpreter for tests: a faster `tl.reduce`, and masks that work with stores in Triton 3.9."""

import numpy as np


def vectorize_reductions():
    """Replaces the interpreter's fallback for `tl.reduce` in this process.

    The interpreter calls custom combine functions element by element. This version calls them for whole slices, with
    the same operands in the same order, and so with the same results.
    """
    from triton.runtime.interpreter import ReduceOps

    def reduce_slices(self, tensors):
        tensors, axis = self.unravel(tensors, self.axis)
        shape = tensors[0].handle.data.shape

        def slices(i):
            return tuple(self.to_tensor(np.take(t.handle.data, i, axis), t.dtype) for t in tensors)

        total = slices(0)
        for i in range(1, shape[axis]):
            combined = self.combine_fn.fn(*total, *slices(i))
            total = combined if isinstance(combined, tuple) else (combined,)
        results = [part.handle.data.reshape(shape[:axis] + shape[axis + 1 :]) for part in total]
        if self.keep_dims:
            kept = [1] * len(shape) if self.axis is None else (*shape[:axis], 1, *shape[axis + 1 :])
            results = [result.reshape(kept) for result in results]
        elif self.axis is None:
            results = [result.item() for result in results]
        return [self.to_tensor(result, tensor.dtype) for result, tensor in zip(results, tensors)]

    ReduceOps.generic_reduce = reduce_slices


def keep_booleans():
    """Keeps the boolean type of scalar comparisons in this process when they become tensors.

    The interpreter gives comparisons the type of their operands, and `create_splat` converts them to it. Triton 3.9
    raises an error if such a tensor is a mask; earlier versions accept any number.
    """
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    splat = InterpreterBuilder.create_splat

    def splat_of_type(self, shape, value):
        if value.data.dtype == np.bool_:
            value = TensorHandle(value.data, tl.int1)
        return splat(self, shape, value)

    InterpreterBuilder.create_splat = splat_of_type
