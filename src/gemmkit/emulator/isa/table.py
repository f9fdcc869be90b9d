"""The instruction table: every PTX form that gemmkit executes, with one strict key per full opcode.

Anything not in the table raises; nothing is matched loosely. `isa.semantics` defines what a form
computes if it needs registers only; the executors implement memory, warps and control flow.
"""

from __future__ import annotations

from functools import cache

from gemmkit.emulator.isa.asynchronous import ROWS as ASYNCHRONOUS
from gemmkit.emulator.isa.fit import is_predicate, operands_fit
from gemmkit.emulator.isa.form import Form, bindings, expand, operand_specs
from gemmkit.emulator.isa.fragment_products import products
from gemmkit.emulator.isa.matrix_forms import matrix_rows
from gemmkit.emulator.isa.matrix_rows import MATRIX_ROWS
from gemmkit.emulator.isa.memory_forms import MEMORY_ROWS
from gemmkit.emulator.isa.modifier_order import in_order
from gemmkit.emulator.isa.warpgroup_forms import immediates_fit, taking, warpgroup_rows
from gemmkit.emulator.ptx.constructs import not_executed
from gemmkit.emulator.ptx.module import Instruction, Register, Symbol
from gemmkit.errors import UnsupportedInstruction

INT16_UP = "u16,s16,u32,s32,u64,s64"
BITS = "b16,b32,b64"
COMPARE = "eq,ne,lt,le,gt,ge"
COMPARE_UNORDERED = f"{COMPARE},equ,neu,ltu,leu,gtu,geu,num,nan"
ROUND = "R:.rn,.rz,.rm,.rp"
ROUND_OR_NONE = "R:,.rn,.rz,.rm,.rp"
FLUSH = "F:,.ftz"
# pattern | operation | operands | opcode class. A pattern may list alternatives at `|`.
_ROWS: tuple[tuple[str, str, str, str], ...] = (
    # Moves
    ("mov.{T:pred,b16,b32,b64,u16,s16,u32,s32,u64,s64,f32,f64}", "move", "={T} {T}", "move"),
    ("cvta{D:,.to}.{S:global,shared,shared::cta,shared::cluster,local,const,param}.{T:u64}",
     "convert_address",
     "={T} {T}", "integer"),
    ("selp.{T:b16,b32,b64,u16,u32,u64,s16,s32,s64,f32,f64}", "select", "={T} {T} {T} pred",
     "move"),
    ("slct.{T:b32,u32,s32,f32,b64,u64,s64,f64}.{U:s32,f32}", "select_by_sign",
     "={T} {T} {T} {U}", "move"),
    ("prmt.b32{M:,.f4e,.b4e,.rc8,.ecl,.ecr,.rc16}", "permute_bytes", "=b32 b32 b32 b32", "bits"),
    # Integer arithmetic
    (f"{{O:add,sub}}.{{T:{INT16_UP}}}", "integer", "={T} {T} {T}", "integer"),
    ("{O:add,sub}.sat.{T:s32}", "integer_saturate", "={T} {T} {T}", "integer"),
    ("{O:add,sub}{I:,c}.cc.{T:u32,s32,u64,s64}", "carry_out", "={T} {T} {T}", "integer"),
    ("{O:add,sub}c.{T:u32,s32,u64,s64}", "carry_in", "={T} {T} {T}", "integer"),
    (f"mul.{{P:lo,hi}}.{{T:{INT16_UP}}}", "multiply", "={T} {T} {T}", "integer"),
    ("mul.wide.{T:u16,s16,u32,s32}", "multiply_wide", "=wide({T}) {T} {T}", "integer"),
    (f"mad.{{P:lo,hi}}.{{T:{INT16_UP}}}", "multiply_add", "={T} {T} {T} {T}", "integer"),
    ("mad.wide.{T:u16,s16,u32,s32}", "multiply_add_wide", "=wide({T}) {T} {T} wide({T})",
     "integer"),
    ("mul24.lo.{T:u32,s32}", "multiply24", "={T} {T} {T}", "integer"),
    ("mad24.lo.{T:u32,s32}", "multiply24_add", "={T} {T} {T} {T}", "integer"),
    (f"{{O:div,rem}}.{{T:{INT16_UP}}}", "divide", "={T} {T} {T}", "integer"),
    (f"{{O:min,max}}.{{T:{INT16_UP}}}", "integer", "={T} {T} {T}", "integer"),
    ("{O:abs,neg}.{T:s16,s32,s64}", "integer_unary", "={T} {T}", "integer"),
    (f"sad.{{T:{INT16_UP}}}", "absolute_difference_add", "={T} {T} {T} {T}", "integer"),
    ("dp4a.{T:u32,s32}.{U:u32,s32}", "dot4", "=b32 b32 b32 b32", "integer"),
    # Bits
    (f"{{O:and,or,xor}}.{{T:pred,{BITS}}}", "logic", "={T} {T} {T}", "bits"),
    (f"not.{{T:pred,{BITS}}}", "not", "={T} {T}", "bits"),
    (f"cnot.{{T:{BITS}}}", "logical_not", "={T} {T}", "bits"),
    ("lop3.b32", "logic3", "=b32 b32 b32 b32 #", "bits"),
    (f"shl.{{T:{BITS}}}", "shift_left", "={T} {T} u32", "bits"),
    (f"shr.{{T:{BITS},{INT16_UP}}}", "shift_right", "={T} {T} u32", "bits"),
    ("shf.{D:l,r}.{M:wrap,clamp}.b32", "funnel_shift", "=b32 b32 b32 u32", "bits"),
    ("bfe.{T:u32,s32,u64,s64}", "extract_bits", "={T} {T} u32 u32", "bits"),
    ("bfi.{T:b32,b64}", "insert_bits", "={T} {T} {T} u32 u32", "bits"),
    ("{O:popc,clz}.{T:b32,b64}", "count_bits", "=u32 {T}", "bits"),
    ("brev.{T:b32,b64}", "reverse_bits", "={T} {T}", "bits"),
    ("bfind{M:,.shiftamt}.{T:u32,s32,u64,s64}", "find_bit", "=u32 {T}", "bits"),
    ("fns.{T:b32}", "find_nth_set", "=b32 b32 b32 s32", "bits"),
    # fp32 and fp64
    (f"{{O:add,sub,mul}}{{{ROUND_OR_NONE}}}{{{FLUSH}}}{{A:,.sat}}.{{T:f32}}", "float",
     "={T} {T} {T}", "fp32"),
    (f"{{O:add,sub,mul}}{{{ROUND_OR_NONE}}}.{{T:f64}}", "float", "={T} {T} {T}", "fp64"),
    (f"{{O:fma,mad}}{{{ROUND}}}{{{FLUSH}}}{{A:,.sat}}.{{T:f32}}", "fused_multiply_add",
     "={T} {T} {T} {T}", "fma"),
    (f"{{O:fma,mad}}{{{ROUND}}}.{{T:f64}}", "fused_multiply_add", "={T} {T} {T} {T}", "fp64"),
    (f"div{{R:.rn}}{{{FLUSH}}}.{{T:f32}}", "float_divide", "={T} {T} {T}", "fp32"),
    ("div{R:.rn}.{T:f64}", "float_divide", "={T} {T} {T}", "fp64"),
    (f"div.{{R:approx,full}}{{{FLUSH}}}.{{T:f32}}", "float_divide_approximate", "={T} {T} {T}",
     "special"),
    (f"{{O:min,max}}{{{FLUSH}}}{{N:,.NaN}}.{{T:f32}}", "float_extreme", "={T} {T} {T}", "fp32"),
    ("{O:min,max}.{T:f64}", "float_extreme", "={T} {T} {T}", "fp64"),
    (f"{{O:abs,neg}}{{{FLUSH}}}.{{T:f32}}", "float_sign", "={T} {T}", "fp32"),
    ("{O:abs,neg}.{T:f64}", "float_sign", "={T} {T}", "fp64"),
    ("copysign.{T:f32,f64}", "copy_sign", "={T} {T} {T}", "fp32"),
    ("testp.{P:finite,infinite,number,notanumber,normal,subnormal}.{T:f32,f64}", "test_property",
     "=pred {T}", "fp32"),
    (f"{{O:sqrt,rcp}}{{R:.rn}}{{{FLUSH}}}.{{T:f32}}", "float_root", "={T} {T}", "fp32"),
    ("{O:sqrt,rcp}{R:.rn}.{T:f64}", "float_root", "={T} {T}", "fp64"),
    (f"{{O:sqrt,rcp,rsqrt,ex2,lg2,sin,cos}}.approx{{{FLUSH}}}.{{T:f32}}", "approximate",
     "={T} {T}", "special"),
    ("{O:rsqrt}.approx{F:}.{T:f64}", "approximate", "={T} {T}", "special"),
    # These read the upper half of the operand and write that of the result.
    ("{O:rcp,rsqrt}.approx{F:.ftz}.{T:f64}", "approximate", "={T} {T}", "special"),
    ("{O:tanh}.approx{F:}.{T:f32}", "approximate", "={T} {T}", "special"),
    # fp16 and bf16, one or two to a register
    ("{O:add,sub,mul}{,.rn}{F:,.ftz}{A:,.sat}.{T:f16,f16x2}", "half", "={T} {T} {T}", "fp16"),
    ("{O:add,sub,mul}{,.rn}{F:}{A:}.{T:bf16,bf16x2}", "half", "={T} {T} {T}", "fp16"),
    ("fma.rn{F:,.ftz}{A:,.sat,.relu}.{T:f16,f16x2}", "half_fma", "={T} {T} {T} {T}", "fp16"),
    ("fma.rn{F:}{A:,.relu}.{T:bf16,bf16x2}", "half_fma", "={T} {T} {T} {T}", "fp16"),
    ("{O:abs,neg}{F:,.ftz}.{T:f16,f16x2}|{O:abs,neg}{F:}.{T:bf16,bf16x2}", "half_sign",
     "={T} {T}", "fp16"),
    ("{O:min,max}{F:,.ftz}{N:,.NaN}.{T:f16,f16x2}|{O:min,max}{F:}{N:,.NaN}.{T:bf16,bf16x2}",
     "half_extreme", "={T} {T} {T}", "fp16"),
    # Comparisons
    (f"setp.{{C:{COMPARE}}}.{{T:u16,s16,u32,s32,u64,s64}}|setp.{{C:eq,ne}}.{{T:{BITS}}}|"
     "setp.{C:lo,ls,hi,hs}.{T:u16,u32,u64}",
     "compare", "=pred|pred {T} {T}", "compare"),
    (f"setp.{{C:{COMPARE_UNORDERED}}}{{{FLUSH}}}.{{T:f32}}|setp.{{C:{COMPARE_UNORDERED}}}.{{T:f64}}",
     "compare", "=pred|pred {T} {T}", "compare"),
    (f"setp.{{C:{COMPARE_UNORDERED}}}{{{FLUSH}}}.{{T:f16}}|setp.{{C:{COMPARE_UNORDERED}}}.{{T:bf16}}",
     "compare", "=pred {T} {T}", "compare"),
    (f"setp.{{C:{COMPARE}}}.{{B:and,or,xor}}.{{T:u16,s16,u32,s32,u64,s64}}|"
     f"setp.{{C:eq,ne}}.{{B:and,or,xor}}.{{T:{BITS}}}|"
     f"setp.{{C:{COMPARE_UNORDERED}}}.{{B:and,or,xor}}{{{FLUSH}}}.{{T:f32}}|"
     f"setp.{{C:{COMPARE_UNORDERED}}}.{{B:and,or,xor}}.{{T:f64}}",
     "compare_combine", "=pred|pred {T} {T} pred", "compare"),
    (f"set.{{C:{COMPARE}}}.{{D:u32,s32,f32}}.{{T:u16,s16,u32,s32,u64,s64}}|"
     f"set.{{C:{COMPARE_UNORDERED}}}{{{FLUSH}}}.{{D:u32,s32,f32}}.{{T:f32}}|"
     f"set.{{C:{COMPARE_UNORDERED}}}.{{D:u32,s32,f32}}.{{T:f64}}",
     "compare_value", "={D} {T} {T}", "compare"),
    # Conversions
    ("cvt.{D:u8,s8,u16,s16,u32,s32,u64,s64}.{T:u8,s8,u16,s16,u32,s32,u64,s64}",
     "convert_integer", "={D} {T}", "convert"),
    # To formats that do not represent all numbers.
    ("cvt.sat.{D:u8}.{T:s8,u16,s16,u32,s32,u64,s64}|cvt.sat.{D:s8}.{T:u8,u16,s16,u32,s32,u64,s64}|"
     "cvt.sat.{D:u16}.{T:s8,s16,u32,s32,u64,s64}|cvt.sat.{D:s16}.{T:u16,u32,s32,u64,s64}|"
     "cvt.sat.{D:u32}.{T:s8,s16,s32,u64,s64}|cvt.sat.{D:s32}.{T:u32,u64,s64}|"
     "cvt.sat.{D:u64}.{T:s8,s16,s32,s64}|cvt.sat.{D:s64}.{T:u64}",
     "convert_integer_saturate", "={D} {T}", "convert"),
    (f"cvt{{{ROUND}}}.{{D:f16,f32,f64}}.{{T:u8,s8,u16,s16,u32,s32,u64,s64}}",
     "convert_to_float", "={D} {T}", "convert"),
    (f"cvt{{R:.rni,.rzi,.rmi,.rpi}}{{{FLUSH}}}{{A:,.sat}}.{{D:u8,s8,u16,s16,u32,s32,u64,s64}}."
     "{T:f32}|cvt{R:.rni,.rzi,.rmi,.rpi}{F:}{A:,.sat}.{D:u8,s8,u16,s16,u32,s32,u64,s64}.{T:f16,f64}",
     "convert_to_integer", "={D} {T}", "convert"),
    (f"cvt{{{ROUND}}}{{{FLUSH}}}{{A:,.sat}}.{{D:f32}}.{{T:f64}}|"
     f"cvt{{{ROUND}}}{{{FLUSH}}}{{A:,.sat}}.{{D:f16}}.{{T:f32}}|"
     f"cvt{{{ROUND}}}.{{D:f16}}.{{T:f64}}|cvt{{R:.rn,.rz}}.{{D:bf16}}.{{T:f32}}",
     "convert_narrow", "={D} {T}", "convert"),
    (f"cvt{{{FLUSH}}}{{A:,.sat}}.{{D:f32}}.{{T:f16}}|cvt.{{D:f64}}.{{T:f16}}|"
     f"cvt{{{FLUSH}}}.{{D:f64}}.{{T:f32}}|cvt.{{D:f32}}.{{T:bf16}}",
     "convert_widen", "={D} {T}", "convert"),
    (f"cvt{{R:.rni,.rzi,.rmi,.rpi}}{{{FLUSH}}}{{A:,.sat}}.{{D:f32}}.{{T:f32}}|"
     "cvt{R:.rni,.rzi,.rmi,.rpi}.{D:f64}.{T:f64}",
     "round_to_integral", "={D} {T}", "convert"),
    (f"cvt{{{FLUSH}}}{{A:.sat}}.{{D:f32}}.{{T:f32}}", "saturate", "={D} {T}", "convert"),
    ("cvt{R:.rn,.rz}{A:,.relu}.{D:f16x2,bf16x2}.{T:f32}", "convert_pack", "={D} {T} {T}",
     "convert"),
    ("cvt.rn.satfinite{A:,.relu}.{E:e4m3x2,e5m2x2}.{T:f32}", "convert_fp8_pack", "=b16 {T} {T}",
     "convert"),
    ("cvt.rn.satfinite{A:,.relu}.{E:e4m3x2,e5m2x2}.{T:f16x2}", "convert_fp8_narrow", "=b16 {T}",
     "convert"),
    ("cvt.rn{A:,.relu}.{T:f16x2}.{E:e4m3x2,e5m2x2}", "convert_fp8_widen", "={T} b16", "convert"),
    ("cvt{R:.rna}{A:}.tf32.{T:f32}|cvt{R:.rn,.rz}{A:,.relu}.tf32.{T:f32}", "convert_tf32",
     "=b32 {T}", "convert"),
    *MEMORY_ROWS,
    ("isspacep.{S:global,shared,shared::cta,shared::cluster,local}", "is_space", "=pred u64",
     "integer"),
    ("mapa{,.shared::cluster}.{T:u32,u64}", "map_address", "={T} {T} u32", "integer"),
    ("getctarank{,.shared::cluster}.{T:u32,u64}", "cluster_rank", "=u32 {T}", "integer"),
    # Warps and blocks
    ("shfl.sync.{M:up,down,bfly,idx}.b32", "shuffle", "=b32|pred b32 b32 b32 b32", "warp"),
    ("vote.sync.{M:all,any,uni}.pred", "vote", "=pred pred b32", "warp"),
    ("vote.sync.ballot.b32", "ballot", "=b32 pred b32", "warp"),
    ("activemask.b32", "active_mask", "=b32", "warp"),
    ("match.any.sync.{T:b32,b64}", "match_any", "=b32 {T} b32", "warp"),
    ("match.all.sync.{T:b32,b64}", "match_all", "=b32|pred {T} b32", "warp"),
    ("redux.sync.{O:add,min,max}.{T:u32,s32}|redux.sync.{O:and,or,xor}.{T:b32}", "reduce_warp",
     "={T} {T} b32", "warp"),
    *matrix_rows(),
    *MATRIX_ROWS,
    *warpgroup_rows(),
    ("elect.sync", "elect", "=b32|pred b32", "warp"),
    ("bar.warp.sync", "no_operation", "b32", "synchronize"),
    ("bar{,.cta}.sync|barrier{,.cta}.sync{,.aligned}", "barrier", "u32 ?u32", "synchronize"),
    ("bar{,.cta}.red.{R:popc}.u32|barrier{,.cta}.red.{R:popc}{,.aligned}.u32", "barrier",
     "=u32 u32 ?u32 pred", "synchronize"),
    ("bar{,.cta}.red.{R:and,or}.pred|barrier{,.cta}.red.{R:and,or}{,.aligned}.pred", "barrier",
     "=pred u32 ?u32 pred", "synchronize"),
    ("bar{,.cta}.arrive|barrier{,.cta}.arrive{,.aligned}", "barrier_arrive", "u32 u32",
     "synchronize"),
    # Fences of proxies order asynchronous operations and aliases, of which there are none.
    ("membar.{cta,gl,sys}|fence{.sc,.acq_rel}.{cta,cluster,gpu,sys}|"
     "fence.proxy.async{,.global,.shared::cta,.shared::cluster}|fence.proxy.alias|"
     "membar.proxy.alias|fence.mbarrier_init.release.cluster", "no_operation", "", "synchronize"),
    # Launches do not overlap: the ones before are complete, and none waits for this one.
    ("griddepcontrol.{launch_dependents,wait}", "no_operation", "", "control"),
    ("setmaxnreg.{inc,dec}.sync.aligned.u32", "set_registers", "#", "control"),
    # Control
    ("bra|bra.uni", "branch", "@", "control"),
    ("ret|ret.uni|exit", "exit", "", "control"),
    ("trap|brkpt", "trap", "", "control"),
    ("nanosleep.u32", "no_operation", "u32", "control"),
    ("call|call.uni", "call", "() $ ()", "control"),
    *ASYNCHRONOUS,
)  # fmt: skip


# Opcodes that are refused for a specific reason, by their first word.
_REFUSED = {
    "discard": "it leaves memory undefined, and reads of that memory would not be detected; remove "
    "it for emulated runs, where it has no benefit",
}


@cache
def table() -> dict[str, Form]:
    """Every form by its full opcode; building it takes a while, so use `form_of` to look up one."""
    forms: dict[str, Form] = {}
    for patterns, operation, signature, opcode_class in _ROWS:
        for pattern in patterns.split("|"):
            for opcode, bound in expand(pattern):
                operands = operand_specs(signature, bound)
                forms.setdefault(opcode, Form(opcode, operation, operands, opcode_class, bound))
    return forms


@cache
def form_of(opcode: str) -> Form | None:
    """The form with this full opcode, or None if there is none."""
    for patterns, operation, signature, opcode_class in _ROWS:
        for pattern in patterns.split("|"):
            bound = bindings(pattern, opcode)
            if bound is not None:
                operands = operand_specs(signature, bound)
                return Form(opcode, operation, operands, opcode_class, bound)
    return None


def is_assertion(instruction: Instruction) -> bool:
    """Whether this is the call that ends a kernel when an `assert` fails."""
    called = (each.name for each in instruction.operands if isinstance(each, Symbol))
    return "__assertfail" in called


def stop_of(instruction: Instruction) -> str:
    """What the instruction that ends the kernel is, in words."""
    return "failed assertion" if is_assertion(instruction) else "trap"


def decode(instruction: Instruction) -> Form:
    """The form of an instruction, with its operands checked against it.

    Raises:
        UnsupportedInstruction: the table lacks the opcode, or the operands do not fit.
    """
    operands, guard = instruction.operands, instruction.guard
    if guard is None or guard.register.type == "pred":
        # Most have nothing but registers, of the same few types.
        types = tuple([each.type for each in operands if isinstance(each, Register)])
        if len(types) == len(operands):
            found = _form_of_registers(instruction.opcode, types)
            if found is not None:
                return found
    return _decoded(instruction)


@cache
def _form_of_registers(opcode: str, types: tuple[str, ...]) -> Form | None:
    """The form of instructions whose operands are registers of these types, or None if there is
    none."""
    registers = tuple(Register("%r", each) for each in types)
    try:
        return _decoded(Instruction(opcode, registers, None, 0, None, ""))
    except UnsupportedInstruction:
        return None


def _decoded(instruction: Instruction) -> Form:
    opcode = instruction.opcode
    form = form_of(opcode) or form_of(in_order(opcode))
    if form is not None and form.operation == "call" and is_assertion(instruction):
        return Form(opcode, "trap", (), form.opcode_class)
    if form is None:
        reason = _REFUSED.get(opcode.partition(".")[0])
        named = not_executed(opcode, instruction.where, instruction.text)
        if named is not None:
            raise UnsupportedInstruction(named)
        refused = f"support '{opcode}'" + (f": {reason}" if reason is not None else "")
        raise UnsupportedInstruction(
            f"the emulator does not {refused} ({instruction.where}: {instruction.text})"
        )
    if form.operation == "multiply_fragments":
        missing = [each.opcode for each in products(form) if form_of(each.opcode) is None]
        if missing:
            raise UnsupportedInstruction(
                f"the emulator does not support '{opcode}', which the hardware executes as "
                f"'{missing[0]}' ({instruction.where}: {instruction.text})"
            )
    form = form.taking([is_predicate(each) for each in instruction.operands])
    form = taking(form, instruction)
    if not (operands_fit(instruction, form) and immediates_fit(form, instruction.operands)):
        raise UnsupportedInstruction(
            f"'{opcode}' does not take these operands ({instruction.where}: {instruction.text})"
        )
    return form
