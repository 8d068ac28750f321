"""Parametrization of tests over the backends. Triton kernels run in Triton's interpreter, in a process of its own."""

import pytest

BACKENDS = [pytest.param("triton", marks=pytest.mark.interpreter), "torch"]
