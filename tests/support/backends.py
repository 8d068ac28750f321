"""Parametrization of tests over the backends. Triton kernels are compiled for the CPU."""

import pytest

BACKENDS = [pytest.param("triton", marks=pytest.mark.triton), "torch"]
