"""Triton's frontend, up to TTIR. It requires neither a GPU nor a driver."""

from collections.abc import Mapping
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler.compiler import make_backend
from triton.runtime.jit import JITFunction

TARGET = GPUTarget("hip", "gfx942", 64)
"""The target of the frontend. TTIR does not depend on it. AMD's backend allows matrix products of any size."""


def make_ttir(kernel: JITFunction[Any], signature: Mapping[str, Any], constants: Mapping[tuple[int, ...], Any]) -> str:
    """Returns the TTIR of a kernel after Triton's passes.

    Args:
        signature: Types, such as "*fp32" or "constexpr", or tuples of them, by parameter.
        constants: Constants by path: the index of the parameter, followed by the indices of fields of tuples.
    """
    source = ASTSource(kernel, dict(signature), dict(constants))
    backend = make_backend(TARGET)
    context = triton._C.libtriton.ir.context()
    triton._C.libtriton.ir.load_dialects(context)
    backend.load_dialects(context)
    options = backend.parse_options({"enable_fp_fusion": False})
    module = source.make_ir(
        TARGET, options, backend.get_codegen_implementation(options), backend.get_module_map(), context
    )
    text: str = backend.make_ttir(module, {}, options).str_nodebug()
    return text
