"""The types of the kernel language in CUDA C++, and the device functions that printed code calls.

Scalars and vectors of 2 and 4 float, int and unsigned are CUDA's own types; three lanes, bool and half vectors are
structs of this module. Operations on vectors are functions that treat lane by lane; every function is written for the
types that a kernel uses, and nothing needs a header.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from litegpu.gpu.backends.cuda.halves import INLINE
from litegpu.gpu.lang.c_like import INFIX
from litegpu.gpu.lang.types import Type

SCALARS = {"f32": "float", "i32": "int", "u32": "unsigned", "bool": "bool", "f16": "f16"}
_OWN_VECTORS = {"f32": "float", "i32": "int", "u32": "uint"}
LANES = "xyzw"
WARP = 32
_WARP_MASK = f"0xffffffffu >> ({WARP}u - threads)"  # the first `threads` of a warp

#: In front of a kernel's text: its workgroups are counted from the last one. (Their number is a multiple of a cluster's
#: size, so clusters stay together. What a workgroup walks over by itself it has to turn itself where this is defined.)
TURNED = f"""{INLINE} uint3 turned_block() {{
  return make_uint3(gridDim.x - 1 - blockIdx.x, gridDim.y - 1 - blockIdx.y, gridDim.z - 1 - blockIdx.z);
}}
#undef blockIdx
#define blockIdx turned_block()
#define TURNED
"""

#: Divisors of which divided() below may be asked: so that no rest of a quotient that counts is subnormal.
LEAST_DIVISOR, LARGEST_DIVISOR = 2.0**-10, 2.0**24
#: The digits of a float32 behind the first; of divisors that have all of them the inverse is too far off.
DIGITS = 0x7FFFFF
#: A quotient by a constant, whose inverse is rounded: rounded once as IEEE says (Markstein), by three multiplications,
#: but where it is tiny (there its last digit may differ) or no number. What it is too large by is +0 where it is right,
#: which leaves a quotient of -0 as it is. The compiler's division calls a function for each numerator that is 0.
DIVIDED = f"""{INLINE} float divided(float a, float by, float inverse) {{
  if (by < 0.0f) a = -a, by = -by, inverse = -inverse;
  const float q = __fmul_rn(a, inverse), better = fmaf(fmaf(q, by, -a), -inverse, q);
  return fabsf(q) < 1e38f ? better : q;
}}"""

#: The larger and the smaller of a number and one that is no NaN; NaN stays, and which of 0 and -0 it is nobody knows.
#: As comparisons, which keep -0, they are two instructions each.
LIMITS = f"""{INLINE} float at_least(float x, float limit) {{
#if __CUDA_ARCH__ >= 800
  asm("max.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(limit));
  return x;
#else
  return x < limit ? limit : x;
#endif
}}
{INLINE} float at_most(float x, float limit) {{
#if __CUDA_ARCH__ >= 800
  asm("min.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(limit));
  return x;
#else
  return limit < x ? limit : x;
#endif
}}"""

#: Single instructions (with two more for subnormal numbers, but for "ftz").
ROUGH_FUNCTIONS = f"""{INLINE} float rough_exp2(float x) {{
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}}
{INLINE} float rough_reciprocal(float x) {{
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}}"""
ROUGH = ("rough_exp2", "rough_reciprocal")


def packing(byte: str) -> str:
    """A function that packs four ints in a word, each saturated to a byte: "s8" or "u8"."""
    low, high = (-128, 127) if byte == "s8" else (0, 255)
    name = f"pack_{byte.replace('s', 'i')}"
    return f"""{INLINE} unsigned {name}(int x, int y, int z, int w) {{
#ifdef __CUDA_ARCH__
  unsigned word;
  asm("{{.reg .u32 high; cvt.pack.sat.{byte}.s32.b32 high, %4, %3, 0; cvt.pack.sat.{byte}.s32.b32 %0, %2, %1, high;}}"
      : "=r"(word) : "r"(x), "r"(y), "r"(z), "r"(w));
  return word;
#else
  const int four[4] = {{x, y, z, w}};
  unsigned word = 0;
  for (int i = 0; i < 4; i++)
    word |= (unsigned)(four[i] < {low} ? {low} : four[i] > {high} ? {high} : four[i]) % 256 << 8 * i;
  return word;
#endif
}}"""


def taking(signed: bool) -> str:
    """A function that takes a byte of four, by its number, which the compiler must know: one instruction."""
    kind, name = ("signed", "byte_i8") if signed else ("unsigned", "byte_u8")
    others = "0x1110 * (8 + i)" if signed else "0x4440"  # three times the sign, or zero
    return f"""{INLINE} int {name}(unsigned a, int i) {{
#ifdef __CUDA_ARCH__
  int byte;
  asm("prmt.b32 %0, %1, 0, %2;" : "=r"(byte) : "r"(a), "r"({others} + i));
  return byte;
#else
  return ({kind} char)(a >> 8 * i);
#endif
}}"""


HALF_TYPE = f"""struct f16 {{ unsigned short bits; }};
{INLINE} float to_float(f16 x) {{ return half_to_float(x.bits); }}
{INLINE} f16 to_half(float x) {{ return f16{{float_to_half(x)}}; }}"""

_COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")

# Bodies of functions of one lane each, in terms of the arguments a, b and c.
_FLOAT = {
    "abs": "fabsf(a)", "floor": "floorf(a)", "ceil": "ceilf(a)", "round": "rintf(a)", "trunc": "truncf(a)",
    "sqrt": "sqrtf(a)", "rsqrt": "rsqrtf(a)", "exp": "expf(a)", "log": "logf(a)", "sin": "sinf(a)", "cos": "cosf(a)",
    "rough_exp2": "rough_exp2(a)", "rough_reciprocal": "rough_reciprocal(a)",
    "tanh": "tanhf(a)", "fma": "fmaf(a, b, c)", "is_nan": "(a != a)",
    "sign": "(a > 0.0f ? 1.0f : a < 0.0f ? -1.0f : a)",
    "to_i32_saturating": "(a != a ? 2147483647 : __float2int_rz(a))", "nearest": "__float2int_rn(a)",
    # The bits of a number near 1.5 * 2^23 count its units: quicker than a conversion. No product is fused with the sum.
    "nearest_small": "(__float_as_int(__fadd_rn(a, 12582912.0f)) - 0x4b400000)",
    "round_small": "__fadd_rn(__fadd_rn(a, 12582912.0f), -12582912.0f)",
}  # fmt: skip
_INT = {  # signed overflow is undefined in C++, and wraps in the language
    "add": "(int)((unsigned)a + (unsigned)b)", "sub": "(int)((unsigned)a - (unsigned)b)",
    "mul": "(int)((unsigned)a * (unsigned)b)", "neg": "(int)(0u - (unsigned)a)",
    "abs": "(a < 0 ? (int)(0u - (unsigned)a) : a)", "sign": "((a > 0) - (a < 0))", "idiv": "(b == 0 ? a : a / b)",
    "irem": "(b == 0 ? 0 : a % b)", "shl": "(int)((unsigned)a << (b & 31))", "shr": "(a >> (b & 31))",
    "dot4": "__dp4a(a, b, c)", "high_product": "(int)(((long long)a * b + (1ll << 30)) >> 31)",
}  # fmt: skip
_UNSIGNED = {"shl": "(a << (b & 31u))", "shr": "(a >> (b & 31u))"}
_BOOL = {"and": "(a && b)", "or": "(a || b)", "xor": "(a != b)", "not": "!a"}
_ANY = {"min": "(b < a ? b : a)", "max": "(a < b ? b : a)", "neg": "-a", "not": "~a"}
_OF_KIND = {"f32": _FLOAT, "i32": _INT, "u32": _UNSIGNED, "bool": _BOOL}


def type_name(type: Type) -> str:
    if type.lanes == 1:
        return SCALARS[type.kind]
    if type.lanes != 3 and type.kind in _OWN_VECTORS:
        return f"{_OWN_VECTORS[type.kind]}{type.lanes}"
    return str(type)


def type_definition(type: Type) -> str:
    """The struct of a type that CUDA lacks; empty for one that it has."""
    if type_name(type) != str(type):
        return ""
    if type.lanes == 1:
        return HALF_TYPE if type.kind == "f16" else ""
    align = 1 if type.kind == "bool" else type.nbytes
    return f"struct __align__({align}) {type} {{ {SCALARS[type.kind]} {', '.join(LANES[: type.lanes])}; }};"


def is_infix(op: str, kind: str) -> bool:
    """Whether C++'s own operator means the same on scalars of this kind."""
    if kind == "i32":
        return op in ("and", "or", "xor", *_COMPARISONS)
    if kind == "bool":
        return op in ("eq", "ne")
    return op in INFIX and kind != "f16"


def lane_expression(op: str, kind: str) -> str:
    """`op` on one lane of each of the arguments a, b and c."""
    if kind == "f16":
        inner = lane_expression(op, "f32")
        for name in "abc":
            inner = substitute(inner, name, f"to_float({name})")
        return inner if op in (*_COMPARISONS, "is_nan") else f"to_half({inner})"
    if is_infix(op, kind):
        return f"(a {INFIX[op]} b)"
    return _OF_KIND[kind].get(op) or _ANY[op]


def cast_expression(source: str, target: str) -> str:
    """The conversion of `a` from one kind to another."""
    value = "to_float(a)" if source == "f16" else "a"
    if target == "bool":
        return f"({value} != 0)"
    if target == "f16":
        return f"to_half((float){value})"
    return f"({SCALARS[target]}){value}"


def bitcast_expression(source: str, target: str) -> str:
    if "f32" not in (source, target):
        return f"({SCALARS[target]})a"
    names = {"f32": "float", "i32": "int", "u32": "uint"}
    return f"__{names[source]}_as_{names[target]}(a)"


def across_lanes(op: str, type: Type) -> str:
    """dot, any or all of the lanes of the vectors a and b."""
    lanes = LANES[: type.lanes]
    if op != "dot":
        return (" || " if op == "any" else " && ").join(f"a.{lane}" for lane in lanes)
    if type.kind == "f16":
        return "to_half(" + " + ".join(f"to_float(a.{n}) * to_float(b.{n})" for n in lanes) + ")"
    if type.kind == "i32":
        return "(int)(" + " + ".join(f"(unsigned)a.{n} * (unsigned)b.{n}" for n in lanes) + ")"
    return " + ".join(f"a.{lane} * b.{lane}" for lane in lanes)


def shuffle(op: str, type: Type) -> str:
    """The function of a scalar of another thread of the warp, of which the first `threads` take part."""
    name, wire = type_name(type), "(int)a.bits" if type.kind == "f16" else "a"
    call = f"__{op.replace('shuffle', 'shfl')}_sync({_WARP_MASK}, {wire}, by)"
    result = f"f16{{(unsigned short){call}}}" if type.kind == "f16" else call
    return f"{INLINE} {name} subgroup_{op}_{type.kind}({name} a, unsigned by, unsigned threads) {{ return {result}; }}"


def reduction(op: str, type: Type) -> str:
    """The function of a scalar of all threads of the warp: a tree towards the first one, of as many as there are, and
    its result to all. Calls shuffle_down, and the function of `op`."""
    name = type_name(type)
    first = f"__shfl_sync({_WARP_MASK}, {'(int)a.bits' if type.kind == 'f16' else 'a'}, 0)"
    return "\n".join([
        f"{INLINE} {name} subgroup_{op}_{type.kind}({name} a, unsigned threads, unsigned lane) {{",
        f"  for (unsigned half = {WARP // 2}; half > 0; half /= 2) {{",
        f"    const {name} other = subgroup_shuffle_down_{type.kind}(a, half, threads);",
        f"    if (lane + half < threads) a = {op}_{type}(a, other);",
        "  }",
        f"  return {f'f16{{(unsigned short){first}}}' if type.kind == 'f16' else first};",
        "}",
    ])  # fmt: skip


def function(name: str, result: Type, params: tuple[Type, ...], body: Callable[[tuple[str, ...]], str]) -> str:
    """A device function of the parameters a, b, c ...; `body` gives the text of its result, for each lane of it, from
    the text of each parameter there (a scalar parameter is the same for every lane)."""
    letters = "abcd"[: len(params)]
    lanes = [
        body(tuple(a if p.lanes == 1 else f"{a}.{lane}" for a, p in zip(letters, params, strict=True)))
        for lane in LANES[: result.lanes]
    ]
    value = lanes[0] if result.lanes == 1 else f"{type_name(result)}{{{', '.join(lanes)}}}"
    head = ", ".join(f"{type_name(p)} {a}" for a, p in zip(letters, params, strict=True))
    return f"{INLINE} {type_name(result)} {name}({head}) {{ return {value}; }}"


def lanewise(name: str, result: Type, params: tuple[Type, ...], expression: str) -> str:
    """As `function`, from an expression of one lane of each parameter."""

    def body(texts: tuple[str, ...]) -> str:
        text = expression
        for letter, value in zip("abcd", texts, strict=False):
            text = substitute(text, letter, value)
        return text

    return function(name, result, params, body)


def substitute(text: str, name: str, value: str) -> str:
    """`text` with the one-letter identifier `name` replaced; members and parts of words are left alone."""
    return re.sub(rf"(?<![\w.]){name}(?!\w)", lambda _: value, text)
