"""Translates TTIR to the text of an LLVM module with one entry point.

The module has two functions. `body` runs one program of the grid. The entry point runs programs until none is left or
its time is up. Several threads may call it for the same launch. Its argument is the address of the state of the launch,
which the threads share; see `threads.HEADER`. The arguments of the kernel are words of 64 bits.
"""

from . import emit_arithmetic, emit_conversion, emit_math, emit_memory, emit_reduction, emit_shape  # noqa: F401  # registered by import
from .emit_control import run_blocks
from .emit_dot import find_skippable
from .emitter import Emitter
from .errors import translating
from .target import Target
from .ttir import Function, parse
from .types import llvm_type
from .values import Value


def translate(text: str, symbol: str, kernel: str, triton_version: str, triple: str, target: Target) -> str:
    """Translates the TTIR of a module with one public function to an LLVM module with the entry point `symbol`."""
    with translating("(parser)", kernel, triton_version):
        function = parse(text, target.lanes)
    emitter = Emitter(kernel, triton_version, target)
    emitter.skipped = find_skippable(function.blocks)
    for k, (name, type) in enumerate(function.parameters):
        emitter.values[name] = Value(type, [f"%arg{k}"], [0])
    with translating("(blocks)", kernel, triton_version):
        run_blocks(emitter, function.blocks)
    return _module(emitter, function, symbol, triple)


def _module(emitter: Emitter, function: Function, symbol: str, triple: str) -> str:
    code = emitter.code
    types = ["ptr" if type.pointer else llvm_type(type.element, None) for _, type in function.parameters]
    grid = [f"i32 %{name}_{axis}" for name in ("program", "programs") for axis in "xyz"]
    parameters = ", ".join([*(f"{t} %arg{k}" for k, t in enumerate(types)), *grid])
    loads = []
    for k, t in enumerate(types):
        loads.append(f"  %place{k} = getelementptr i64, ptr %arguments, i64 {k}")
        loads.append(f"  %arg{k} = load {t}, ptr %place{k}, align 8")
    wide = '"prefer-vector-width"="512" "min-legal-vector-width"="512"' if emitter.target.avx512 else ""
    entry = _entry_point(symbol, "\n".join(loads), parameters, triple.startswith("x86_64"))
    lines = [
        f'target triple = "{triple}"',
        f"define internal void @body({parameters}) #0 {{",
        "entry:",
        *code.allocations,
        *code.lines,
        "}",
        entry,
        *(declaration for declaration in code.declarations if declaration not in entry),
        f"attributes #0 = {{ nounwind {wide} }}",
        "",
    ]
    return "\n".join(lines)


def _entry_point(symbol: str, loads: str, parameters: str, x86: bool) -> str:
    """Returns the function that threads call. It sets the default floating-point modes while it runs.

    A thread claims one program first. It doubles the number if the programs took less than 1/64 of the time of a call,
    and halves it otherwise. So calls return in time even if programs are slow, and claims cost little if they are fast.
    """
    save, restore, declarations = _default_modes(x86)
    words = ("done", "total", "claim", "ticks", "size_x", "size_y", "size_z", "active", "arguments")
    places = [f"  %{word}_place = getelementptr i64, ptr %state, i64 {k}" for k, word in enumerate(words, 1)]
    places += [f"  %{word} = load i64, ptr %{word}_place" for word in words[1:7]]
    places += [f"  %programs_{axis} = trunc i64 %size_{axis} to i32" for axis in "xyz"]
    newline = "\n"
    clock = "llvm.readcyclecounter" if x86 else "llvm.readsteadycounter"
    return f"""
define void @{symbol}(ptr %state) #0 {{
entry:
{save}
{newline.join(places)}
  %arguments = load ptr, ptr %arguments_place
{loads}
  %short = lshr i64 %ticks, 6
  %others = atomicrmw add ptr %active_place, i64 1 seq_cst
  %begin = call i64 @{clock}()
  br label %next_claim
next_claim:
  %size = phi i64 [ 1, %entry ], [ %next_size, %finished ]
  %start = phi i64 [ %begin, %entry ], [ %now, %finished ]
  %first = atomicrmw add ptr %state, i64 %size seq_cst
  %left = icmp slt i64 %first, %total
  br i1 %left, label %claimed, label %exit
claimed:
  %limit = add i64 %first, %size
  %end = call i64 @llvm.smin.i64(i64 %limit, i64 %total)
  br label %run
run:
  %program = phi i64 [ %first, %claimed ], [ %following, %run ]
  %x = urem i64 %program, %size_x
  %rest = udiv i64 %program, %size_x
  %y = urem i64 %rest, %size_y
  %z = udiv i64 %rest, %size_y
  %program_x = trunc i64 %x to i32
  %program_y = trunc i64 %y to i32
  %program_z = trunc i64 %z to i32
  call void @body({parameters})
  %following = add i64 %program, 1
  %more = icmp slt i64 %following, %end
  br i1 %more, label %run, label %finished
finished:
  %count = sub i64 %end, %first
  %before = atomicrmw add ptr %done_place, i64 %count acq_rel
  %now = call i64 @{clock}()
  %spent = sub i64 %now, %start
  %quick = icmp ult i64 %spent, %short
  %double = shl i64 %size, 1
  %more_programs = call i64 @llvm.smin.i64(i64 %double, i64 %claim)
  %half = lshr i64 %size, 1
  %fewer_programs = call i64 @llvm.smax.i64(i64 %half, i64 1)
  %next_size = select i1 %quick, i64 %more_programs, i64 %fewer_programs
  %elapsed = sub i64 %now, %begin
  %in_time = icmp ult i64 %elapsed, %ticks
  br i1 %in_time, label %next_claim, label %exit
exit:
  %remaining = atomicrmw sub ptr %active_place, i64 1 seq_cst
{restore}
  ret void
}}
declare i64 @{clock}()
declare i64 @llvm.smin.i64(i64, i64)
declare i64 @llvm.smax.i64(i64, i64)
{declarations}"""


def _default_modes(x86: bool) -> tuple[str, str, str]:
    """Returns code that sets the default floating-point modes, code that restores the caller's, and declarations."""
    if not x86:
        return "", "", ""
    save = """  %mode = alloca i32
  %default = alloca i32
  call void @llvm.x86.sse.stmxcsr(ptr %mode)
  store i32 8064, ptr %default
  call void @llvm.x86.sse.ldmxcsr(ptr %default)"""
    restore = "  call void @llvm.x86.sse.ldmxcsr(ptr %mode)"
    return save, restore, "declare void @llvm.x86.sse.stmxcsr(ptr)\ndeclare void @llvm.x86.sse.ldmxcsr(ptr)"
