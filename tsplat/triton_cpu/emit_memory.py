"""Emitters of addresses, loads and stores.

A chunk of consecutive addresses becomes one vector load or store, and a chunk of equal addresses one scalar load. Other
chunks become gathers and scatters, or one access per lane if the CPU has no such instructions. Masks of scalar accesses
become branches.
"""

from .emit_arithmetic import integer_operation
from .emit_conversion import convert_integers
from .emitter import Emitter, emits
from .errors import UnsupportedFormError
from .ttir import Operation
from .types import BITS, BYTES, Type, llvm_type
from .values import Value, value_of

HINTS = r"(?:(?:cacheModifier|evictionPolicy) = \w+ ?)*(?:\{isVolatile = (?:true|false)\})?"
"""Attributes without effect: cache hints, and `isVolatile`, as loads are never merged or left out."""

PREFETCH = r'\{libname = "", libpath = "", pure = false, symbol = "prefetch"\}'


@emits("tt.addptr")
def emit_addptr(e: Emitter, operation: Operation) -> Value:
    pointer, offset = e.operands(operation)
    code = e.code
    if pointer.base is None:
        if offset.type.shape is not None:
            raise UnsupportedFormError("scalar pointer with a tensor of offsets")
        element = llvm_type(_in_memory(pointer), None)
        address = f"getelementptr {element}, ptr {pointer.chunks[0]}, {offset.type.llvm} {offset.chunks[0]}"
        return Value(pointer.type, [code.pure(address)], [0])
    if all(not any(code.known(chunk) or (1,)) for chunk in pointer.chunks):
        return Value(pointer.type, offset.chunks, offset.steps, pointer.base, offset.type.element, offset.firsts)
    # Sums of 32-bit offsets may overflow 32 bits.
    a = wide_offsets(e, pointer)
    b = Value(pointer.type, offset.chunks, offset.steps, pointer.base, offset.type.element, offset.firsts)
    total = integer_operation(e, "add", _as_integers(a), _as_integers(wide_offsets(e, b)))
    return Value(pointer.type, total.chunks, total.steps, pointer.base, "i64", total.firsts)


@emits("tt.ptr_to_int")
def emit_ptr_to_int(e: Emitter, operation: Operation) -> Value:
    (pointer,) = e.operands(operation)
    if pointer.base is not None:
        raise UnsupportedFormError("tensor of pointers")
    return value_of(e.code, operation.type, [e.code.pure(f"ptrtoint ptr {pointer.chunks[0]} to {operation.type.llvm}")])


@emits("tt.int_to_ptr")
def emit_int_to_ptr(e: Emitter, operation: Operation) -> Value:
    (address,) = e.operands(operation)
    if address.type.shape is not None:
        raise UnsupportedFormError("tensor of pointers")
    return Value(operation.type, [e.code.pure(f"inttoptr {address.type.llvm} {address.chunks[0]} to ptr")], [0])


@emits("tt.extern_elementwise", attributes=PREFETCH)
def emit_prefetch(e: Emitter, operation: Operation) -> Value:
    """Prefetches the cache line of an address. The result is always 0."""
    (address,) = e.operands(operation)
    if address.type.shape is not None:
        raise UnsupportedFormError("tensor of addresses")
    pointer = e.code.pure(f"inttoptr {address.type.llvm} {address.chunks[0]} to ptr")
    arguments = [("ptr", pointer), ("i32", "0"), ("i32", "3"), ("i32", "1")]
    e.code.effect(e.code.call("llvm.prefetch.p0", "void", arguments))
    return value_of(e.code, operation.type, ["0"])


def _as_integers(pointers: Value) -> Value:
    """Returns the offsets of a tensor of pointers."""
    type = pointers.type._replace(element=pointers.offset, pointer=False)
    return Value(type, pointers.chunks, pointers.steps, firsts=pointers.firsts)


def wide_offsets(e: Emitter, pointers: Value) -> Value:
    """Returns a tensor of pointers with offsets of 64 bits."""
    if BITS[pointers.offset] == 64:
        return pointers
    wide = convert_integers(e, "sext", _as_integers(pointers), "i64")
    return Value(pointers.type, wide.chunks, wide.steps, pointers.base, "i64", wide.firsts)


def _in_memory(pointer: Value) -> str:
    """Returns the element type in memory that a pointer points to. A bool takes a byte."""
    return "i8" if pointer.type.element == "i1" else pointer.type.element


@emits("tt.load", attributes=HINTS)
def emit_load(e: Emitter, operation: Operation) -> Value:
    pointer, *rest = e.operands(operation)
    mask, other = (*rest, None, None)[:2]
    if pointer.type.element == "i1":
        raise UnsupportedFormError("load of i1")
    type = pointer.type._replace(pointer=False)
    if pointer.base is None:
        return Value(type, [_load_scalar(e, pointer, mask, other)], [0])
    code, lanes, element = e.code, type.lanes, llvm_type(type.element, None)
    chunks: list[str] = []
    loaded: dict[tuple[str, str | None, str | None], str] = {}
    for k, (offset, step) in enumerate(zip(pointer.chunks, pointer.steps)):
        chunk_mask = _useful_mask(e, mask, k)
        default = None if other is None or chunk_mask is None else other.chunks[k]
        key = (offset, chunk_mask, default)
        if key not in loaded:
            if step == 0 and chunk_mask is None:
                address = _first_address(e, pointer, k)
                scalar = code.result(f"load {element}, ptr {address}, align {BYTES[type.element]}")
                loaded[key] = code.splat(scalar, type.element, lanes)
            elif step == 1 and chunk_mask is None:
                address = _first_address(e, pointer, k)
                loaded[key] = code.result(f"load {type.llvm}, ptr {address}, align {BYTES[type.element]}")
            elif step == 1 and has_masked(e, type.element):
                call = code.masked("load", type.element, lanes, _first_address(e, pointer, k), chunk_mask, default)
                loaded[key] = code.result(call)
            else:
                loaded[key] = gather(e, type, _addresses(e, pointer, k), chunk_mask, default)
        chunks.append(loaded[key])
    return value_of(code, type, chunks)


def _load_scalar(e: Emitter, pointer: Value, mask: Value | None, other: Value | None) -> str:
    code = e.code
    llvm = llvm_type(pointer.type.element, None)
    load = f"load {llvm}, ptr {pointer.chunks[0]}, align {BYTES[pointer.type.element]}"
    if mask is None:
        return code.result(load)
    then, end, before = code.label(), code.label(), code.block
    code.branch_if(mask.chunks[0], then, end)
    code.start(then)
    loaded = code.result(load)
    code.branch(end)
    code.start(end)
    default = "zeroinitializer" if other is None else other.chunks[0]
    return code.result(f"phi {llvm} [ {loaded}, %{then} ], [ {default}, %{before} ]")


@emits("tt.store", attributes=HINTS)
def emit_store(e: Emitter, operation: Operation) -> None:
    pointer, value, *rest = e.operands(operation)
    mask = rest[0] if rest else None
    if pointer.type.element == "i1":
        raise UnsupportedFormError("store of i1")
    if pointer.base is None:
        _store_scalar(e, pointer, value, mask)
        return
    code, type, lanes = e.code, value.type, value.type.lanes
    for k, (chunk, step) in enumerate(zip(value.chunks, pointer.steps)):
        chunk_mask = _useful_mask(e, mask, k)
        if step == 1 and chunk_mask is None:
            code.effect(f"store {type.llvm} {chunk}, ptr {_first_address(e, pointer, k)}, align {BYTES[type.element]}")
        elif step == 1 and has_masked(e, type.element):
            code.effect(code.masked("store", type.element, lanes, _first_address(e, pointer, k), chunk_mask, chunk))
        else:
            _scatter(e, type, _addresses(e, pointer, k), chunk_mask, chunk)


def _store_scalar(e: Emitter, pointer: Value, value: Value, mask: Value | None) -> None:
    code = e.code
    store = f"store {value.type.llvm} {value.chunks[0]}, ptr {pointer.chunks[0]}, align {BYTES[value.type.element]}"
    if mask is None:
        code.effect(store)
        return
    then, end = code.label(), code.label()
    code.branch_if(mask.chunks[0], then, end)
    code.start(then)
    code.effect(store)
    code.branch(end)
    code.start(end)


def has_masked(e: Emitter, element: str) -> bool:
    """Returns whether the CPU has masked loads, masked stores and gathers for an element type."""
    return e.target.avx512 or (e.target.avx2 and BYTES[element] >= 4)


def gather(e: Emitter, type: Type, addresses: str, mask: str | None, default: str | None) -> str:
    """Loads a chunk from a vector of addresses. Lanes whose mask is false are `default`, or zero."""
    code, lanes = e.code, type.lanes
    if has_masked(e, type.element):
        return code.result(code.masked("gather", type.element, lanes, addresses, mask, default))
    element = llvm_type(type.element, None)
    result = "poison"
    for lane, address in enumerate(_lane_addresses(e, type, addresses, mask)):
        loaded = code.result(f"load {element}, ptr {address}, align {BYTES[type.element]}")
        result = code.pure(f"insertelement {type.llvm} {result}, {element} {loaded}, i32 {lane}")
    if mask is None:
        return result
    return code.pure(f"select <{lanes} x i1> {mask}, {type.llvm} {result}, {type.llvm} {default or 'zeroinitializer'}")


def _scatter(e: Emitter, type: Type, addresses: str, mask: str | None, chunk: str) -> None:
    """Stores the lanes of a chunk whose mask is true to a vector of addresses."""
    code = e.code
    if e.target.avx512:
        code.effect(code.masked("scatter", type.element, type.lanes, addresses, mask, chunk))
        return
    for lane, address in enumerate(_lane_addresses(e, type, addresses, mask)):
        value = code.extract(type.llvm, chunk, lane)
        code.effect(f"store {llvm_type(type.element, None)} {value}, ptr {address}, align {BYTES[type.element]}")


def _lane_addresses(e: Emitter, type: Type, addresses: str, mask: str | None) -> list[str]:
    """Returns the address of each lane. Where the mask is false, it is the address of an unused word on the stack.

    This avoids branches: LLVM's code for masks branches once per lane, which is slow to compile and to run.
    """
    code, lanes = e.code, type.lanes
    pointers = f"<{lanes} x ptr>"
    if mask is not None:
        unused = code.pure(f"insertelement {pointers} poison, ptr {code.unused_word()}, i32 0")
        unused = code.shuffle(pointers, unused, "poison", [0] * lanes)
        addresses = code.pure(f"select <{lanes} x i1> {mask}, {pointers} {addresses}, {pointers} {unused}")
    return [code.extract(pointers, addresses, lane) for lane in range(lanes)]


def _useful_mask(e: Emitter, mask: Value | None, k: int) -> str | None:
    """Returns chunk k of a mask, or None if there is no mask or all lanes are true."""
    if mask is None:
        return None
    known = e.code.known(mask.chunks[k])
    return None if known is not None and all(known) else mask.chunks[k]


def _first_address(e: Emitter, pointer: Value, k: int) -> str:
    first = pointer.first(e.code, k)
    element = llvm_type(_in_memory(pointer), None)
    return e.code.pure(f"getelementptr {element}, ptr {pointer.base}, {llvm_type(pointer.offset, None)} {first}")


def _addresses(e: Emitter, pointer: Value, k: int) -> str:
    element = llvm_type(_in_memory(pointer), None)
    return e.code.pure(f"getelementptr {element}, ptr {pointer.base}, {pointer.chunk_type} {pointer.chunks[k]}")
