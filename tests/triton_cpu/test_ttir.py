"""The parser of TTIR."""

from tsplat.triton_cpu.ttir import parse
from tsplat.triton_cpu.types import parse_type

TEXT = """
#loc = loc("kernel.py":1:0)
module {
  tt.func public @kernel(%arg0: !tt.ptr<f32> {tt.divisibility = 16 : i32}, %arg1: i32) attributes {noinline = false} {
    %cst = arith.constant dense<0.000000e+00> : tensor<16xf32>
    %true = arith.constant true
    %0 = tt.make_range {end = 16 : i32, start = 0 : i32} : tensor<16xi32>
    %1 = tt.splat %arg0 : !tt.ptr<f32> -> tensor<16x!tt.ptr<f32>>
    %2 = tt.addptr %1, %0 : tensor<16x!tt.ptr<f32>>, tensor<16xi32>
    %3:2 = scf.for %i = %arg1 to %arg1 step %arg1 iter_args(%a = %cst, %b = %true) -> (tensor<16xf32>, i1)  : i32 {
      %7 = arith.addf %a, %cst : tensor<16xf32>
      scf.yield %7, %b : tensor<16xf32>, i1
    } {tt.num_stages = 2 : i32}
    %4 = "tt.reduce"(%3#0) <{axis = 0 : i32}> ({
    ^bb0(%x: f32, %y: f32):
      %8 = arith.addf %x, %y : f32
      tt.reduce.return %8 : f32
    }) : (tensor<16xf32>) -> f32
    %5 = scf.while (%c = %arg1) : (i32) -> i32 {
      %9 = arith.cmpi slt, %c, %arg1 : i32
      scf.condition(%9) %c : i32
    } do {
    ^bb0(%d: i32):
      scf.yield %d : i32
    }
    cf.cond_br %true, ^bb1(%5 : i32), ^bb2
  ^bb1(%e: i32):  // pred: ^bb0
    tt.return
  ^bb2:  // pred: ^bb0
    %6 = scf.if %3#1 -> (i32) {
      scf.yield %5 : i32
    } else {
      scf.yield %arg1 : i32
    }
    tt.store %2, %3#0 evictionPolicy = evict_first : tensor<16x!tt.ptr<f32>>
    tt.return
  }
}
"""


def test_structure_of_a_function():
    function = parse(TEXT, 8)
    assert function.name == "kernel"
    assert function.parameters == [("%arg0", parse_type("!tt.ptr<f32>", 8)), ("%arg1", parse_type("i32", 8))]
    assert [block.label for block in function.blocks] == ["", "^bb1", "^bb2"]
    assert function.blocks[1].arguments == [("%e", parse_type("i32", 8))]
    entry = {operation.name: operation for operation in function.blocks[0].operations}
    assert entry["tt.addptr"].operands == ["%1", "%0"]
    assert entry["tt.make_range"].integer("end") == 16
    loop = entry["scf.for"]
    assert loop.results == ["%3#0", "%3#1"]
    assert loop.operands == ["%arg1", "%arg1", "%arg1", "%cst", "%true"]
    assert [name for name, _ in loop.regions[0][0].arguments] == ["%i", "%a", "%b"]
    assert loop.regions[0][0].arguments[1][1] == parse_type("tensor<16xf32>", 8)
    reduce = entry["tt.reduce"]
    assert reduce.operands == ["%3#0"]
    assert reduce.attributes == "<{axis = 0 : i32}>"
    assert [name for name, _ in reduce.regions[0][0].arguments] == ["%x", "%y"]
    assert reduce.type == parse_type("f32", 8)
    assert [len(region) for region in entry["scf.while"].regions] == [1, 1]
    assert entry["cf.cond_br"].successors == [("^bb1", ["%5"]), ("^bb2", [])]
    last = function.blocks[2].operations
    assert len(last[0].regions) == 2
    assert last[1].attributes == "evictionPolicy = evict_first"


def test_types():
    pointers = parse_type("tensor<4x16x!tt.ptr<bf16>>", 8)
    assert (pointers.shape, pointers.element, pointers.pointer) == ((4, 16), "bf16", True)
    assert (pointers.size, pointers.lanes, pointers.chunks) == (64, 8, 8)
    scalar = parse_type("f64", 16)
    assert (scalar.shape, scalar.llvm, scalar.size) == (None, "double", 1)
    assert parse_type("tensor<4xi1>", 16).llvm == "<4 x i1>"
    assert parse_type("tensor<32x2xf32>", 16).llvm == "<16 x float>"


def test_named_results():
    text = """
module {
  tt.func public @kernel(%x: tensor<4x2xf32>) {
    %outLHS, %outRHS_0 = tt.split %x : tensor<4x2xf32> -> tensor<4xf32>
    %a, %b:2 = tt.triple %outLHS : tensor<4xf32>
    tt.return
  }
}
"""
    split, triple, _ = parse(text, 8).blocks[0].operations
    assert split.results == ["%outLHS", "%outRHS_0"]
    assert triple.results == ["%a", "%b#0", "%b#1"]
    assert triple.operands == ["%outLHS"]
