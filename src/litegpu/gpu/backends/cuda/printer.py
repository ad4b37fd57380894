"""Print a kernel as CUDA C++ for NVRTC."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from litegpu.gpu.backends.cuda import functions as device
from litegpu.gpu.backends.cuda import limited_halves
from litegpu.gpu.backends.cuda.halves import HALF_CONVERSIONS, INLINE
from litegpu.gpu.backends.cuda.overlap import PROGRAMMATIC_LAUNCH, WAIT
from litegpu.gpu.lang import math, tree
from litegpu.gpu.lang.c_like import INFIX, CLikePrinter, check_kernel
from litegpu.gpu.lang.features import Features
from litegpu.gpu.lang.functions import Function
from litegpu.gpu.lang.kernel import DeviceFunction, Kernel
from litegpu.gpu.lang.printer import decimal, memory_name
from litegpu.gpu.lang.types import KernelError, Type, f32, u32
from litegpu.gpu.lang.value import TracedValue

# The words of C++ and the functions of CUDA that are shaped like a kernel's name, and those that printed code defines.
_WORDS = """alignas alignof and asm auto bool break case catch char class concept const consteval constexpr continue
decltype default delete do double else enum explicit export extern false float for friend goto if inline int long main
mutable namespace new not operator or private protected public register requires return short signed sizeof static
struct switch template this throw true try typedef typeid typename union unsigned using virtual void volatile while xor
abs acos asin atan cbrt ceil clock cos cosh erf exp exp2 expm1 fabs floor fma fmax fmin fmod free hypot isinf isnan log
log10 log1p log2 malloc max memcpy memset min pow printf rint round rsqrt sin sinh sqrt tan tanh trunc f16 to_float
to_half half_to_float float_to_half pack_half2 launch_dependents wait_for_predecessors
rough_exp2 rough_reciprocal divided at_least at_most"""
RESERVED = frozenset(_WORDS.split())

_INT_MIN = "(-2147483647 - 1)"


def print_cuda(kernel: Kernel, features: Features) -> str:
    """The CUDA C++ of `kernel`: an extern "C" function of its name, whose parameter n is buffer n.

    Buffers with access "read" are read through the read-only cache; the others may overlap. With the macro
    PROGRAMMATIC_LAUNCH defined (sm_90 and later) the kernel takes part in programmatic dependent launch: it waits
    before it first touches what other kernels write. Raises KernelError if the kernel breaks a rule or needs what
    `features` lacks.
    """
    check_kernel(kernel, features, RESERVED, "CUDA C++")
    return _Module(kernel, features).print()


@dataclass(frozen=True)
class PrintedFunction:
    """A device function of CUDA C++: what must stand in front of it and itself, in order; then, for its caller, how its
    buffers are declared as parameters and what they are called. Its own parameters follow the buffers."""

    definitions: tuple[str, ...]
    parameters: tuple[str, ...]
    names: tuple[str, ...]


#: What makes 0 of -0.
_ROUNDS = ("round_small", "nearest", "nearest_small")
#: What a function gets of its caller that it would load, at most, of constants, and of other buffers (of several places
#: one of each): each takes registers for as long as the kernel runs.
MOST_CONSTANTS, MOST_OPERANDS = 4, 2


@dataclass(frozen=True)
class Ahead:
    """What the caller of a function loads ahead for it, "constants" or "operands"."""

    function: str
    what: str
    number: int  # of parameters of the function that say where

    @property
    def type(self) -> str:
        """What the caller keeps them in."""
        return "".join(part.capitalize() for part in (*self.function.split("_"), self.what))

    @property
    def load(self) -> str:
        """The function that returns them: (buffers..., parameters...)."""
        return f"load_{self.function}_{self.what}"


def ahead_of(function: str, places: int) -> tuple[Ahead, Ahead]:
    """Its constants, at the last of so many places, and its operands, at all of them."""
    return Ahead(function, "constants", 1), Ahead(function, "operands", places)


def print_cuda_function(function: DeviceFunction, features: Features, places: int = 0) -> PrintedFunction:
    """The CUDA C++ of `function`, for kernels that are not printed but written.

    `places`: so many parameters say where the function reads and writes. What it reads of buffers that nobody writes at
    the place that the last of them is, or one that is known, it gets as an argument behind all others, and what it
    reads of other buffers as another: ahead_of() says how kernels load these, before they wait for others, and before
    their own work.
    """
    body = _FunctionBody(function, features, function.parameters[:places])
    own = []
    for i, value in enumerate(function.parameters):
        body.name_leaf(value, f"p{i}")
        own.append(f"{body.type_name(value.type)} p{i}")
    result, kind = function.result, "void"
    body.print_block(function.body, () if result is None else (result,))
    if result is not None:
        kind = body.type_name(result.type)
        body.line(f"return {body.text(result)};")
    buffers, loading = [body.parameter(m) for m in function.buffers], []
    if places:
        constants, operands = ahead_of(function.name, places)
        loading = body.loading(constants, body.constants, [*buffers, own[places - 1]])
        loading += body.loading(operands, body.operands, [*buffers, *own[:places]])
        own += [f"const {constants.type}& constants", f"const {operands.type}& operands"]
    text = [f"{INLINE} {kind} {function.name}({', '.join(buffers + own)}) {{", *body.lines, "}"]
    definitions = (*body.types.values(), *body.functions.values(), *loading, "\n".join(text))
    return PrintedFunction(definitions, tuple(buffers), tuple(memory_name(m) for m in function.buffers))


def _constant(value: TracedValue) -> np.float32 | None:
    """The number of 32 bits that it is in all lanes, if it is one."""
    scalar = value.args[0] if value.op == "splat" else value
    known = scalar.type.kind == "f32" and scalar.constant is not None
    return np.float32(scalar.constant) if known else None


def _divisor(value: TracedValue) -> np.float32 | None:
    """The constant that it is, if divided() takes it and a multiplication is not the same."""
    number = _constant(value)
    if number is None or not device.LEAST_DIVISOR <= abs(number) <= device.LARGEST_DIVISOR:
        return None
    return None if int(number.view(np.uint32)) & device.DIGITS in (0, device.DIGITS) else number


def _is_moved(value: TracedValue) -> bool:
    """Whether a constant other than 0 was added or subtracted, so that it is no -0."""
    return value.op in ("add", "sub") and any(_constant(a) not in (None, 0) for a in value.args)


class _Module(CLikePrinter):
    """Prints the entry point; collects the types and functions that it needs in front of it."""

    index_type = "unsigned"

    def __init__(self, kernel: Kernel, features: Features) -> None:
        super().__init__(kernel, features)
        self.types: dict[str, str] = {}
        self.waits = True  # still to be printed
        self._whole: dict[int, str] = {}  # what is stored as limited_halves.py says -> the function that makes it
        self._left_to_it: set[int] = set()  # values that this function computes

    def print(self) -> str:
        k = self.kernel
        self.print_body()
        params = ", ".join(self.parameter(m) for m in k.buffers)
        shared = [f"  __shared__ {self.type_name(m.storage)} {memory_name(m)}[{m.size}];" for m in k.shared_memories]
        if k.name in self.functions:
            raise KernelError(f"kernel {k.name}: the name is that of a function that it needs")
        head = [PROGRAMMATIC_LAUNCH, *self.types.values(), *self.functions.values()]
        entry = [f'extern "C" __global__ void __launch_bounds__({k.threads}) {k.name}({params}) {{']
        return "\n".join([*head, *entry, *shared, *self.lines, "}"]) + "\n"

    def before_body(self) -> None:
        if self.kernel.needs_subgroups:
            self._subgroup_ids()

    # Types and leaves

    def type_name(self, type: Type) -> str:
        name = device.type_name(type)
        if name not in self.types:
            if type.kind == "f16":
                self.need_f16(f"{type} arithmetic")
            definition = device.type_definition(type)
            if definition:
                if type.lanes > 1:
                    self.type_name(type.scalar)
                self.types[name] = definition
        return name

    def hardware_id(self, name: str, axis: int) -> str:
        if name == "subgroup_size":
            return f"{device.WARP}u"
        if name == "subgroup_lane":
            return "subgroup_lane"
        return f"{'threadIdx' if name == 'local_id' else 'blockIdx'}.{'xyz'[axis]}"

    def number(self, value: TracedValue) -> str:
        number, kind = value.constant, value.type.kind
        if kind == "i32":
            return (
                _INT_MIN if number == -(2**31) else f"({number})" if number is not None and number < 0 else f"{number}"
            )
        if kind == "f16":
            self.type_name(value.type)
            return f"f16{{0x{value.attr:04x}}}"
        bits = value.attr
        if bits & 0x7F800000 in (0, 0x7F800000) and bits & 0x7FFFFFFF:  # subnormal, infinity or NaN
            return f"__uint_as_float(0x{bits:08x}u)"
        text = decimal(np.float32(number)) + "f"
        return f"({text})" if text.startswith("-") else text

    # Expressions

    def may_lose_sign(self, value: TracedValue) -> bool:
        """Whether nobody can tell `value` -0, if it ever is, from 0."""
        return False

    def repeats(self, value: TracedValue) -> bool:
        return False

    def computed(self, value: TracedValue, args: list[str]) -> str:
        op, type = value.op, value.type
        if op == "subgroup":
            return self._subgroup(value, args)
        if op == "lane":
            return f"{args[0]}.{device.LANES[value.attr]}"
        if op == "vec":
            return f"{self.type_name(type)}{{{', '.join(args)}}}"
        if op == "splat":
            return f"{self.splat(type)}({args[0]})"
        if op in ("cast", "bitcast"):
            return self._conversion(value, args[0])
        if op == "select":
            return self._select(value, args)
        if op in ("dot", "any", "all"):
            return f"{self._across_lanes(value)}({', '.join(args)})"
        return self._arithmetic(value, args)

    def _arithmetic(self, value: TracedValue, args: list[str]) -> str:
        op, operand = value.op, value.args[-1].type
        kind = operand.kind
        if op in device.ROUGH:
            self.types.setdefault("rough", device.ROUGH_FUNCTIONS)
        if op == "pow":
            return f"{self._power(operand)}({', '.join(args)})"
        divisor = _divisor(value.args[1]) if op == "div" and kind == "f32" else None
        if divisor is not None:
            return self._quotient(operand, args[0], divisor)
        if operand.lanes == 1 and device.is_infix(op, kind):
            return f"({args[0]} {INFIX[op]} {args[1]})"
        if kind == "bool" and operand.lanes == 1:
            return {"and": "({} && {})", "or": "({} || {})", "xor": "({} != {})", "not": "(!{})"}[op].format(*args)
        if op == "neg" and kind == "f32" and operand.lanes == 1:
            return f"(-{args[0]})"
        limit = self._limit(value) if op in ("max", "min") else None
        if limit is not None:
            self.types.setdefault("limits", device.LIMITS)
            one = "at_least" if op == "max" else "at_most"
            return self._with_constants(one, operand, args[0], limit)
        infix = operand.lanes > 1 and op in INFIX
        name = f"operator{INFIX[op]}" if infix else f"{op}_{operand}"
        self._define(name, value.type, (operand,) * len(args), device.lane_expression(op, kind))
        return f"({args[0]} {INFIX[op]} {args[1]})" if infix else f"{name}({', '.join(args)})"

    def _limit(self, value: TracedValue) -> np.float32 | None:
        """The constant with which a maximum or minimum is one instruction: not 0 where -0 is to stay."""
        limit = _constant(value.args[1])
        if limit is None or np.isnan(limit):
            return None
        inside = value.args[0]
        positive = self._has_no_sign(inside) or self._is_rounded(value)
        return limit if limit != 0 or (value.op == "max" and positive) else None

    def _has_no_sign(self, value: TracedValue) -> bool:
        """Whether it is no -0, or nobody can tell."""
        return _is_moved(value) or self.may_lose_sign(value)

    def _is_rounded(self, value: TracedValue) -> bool:
        """Whether it ends, within limits, as a whole number and nothing else, which has no -0."""
        users = self._users[value.number]
        alone = len(users) == self._uses[value.number] > 0  # no statement has it
        return alone and all(u.op in _ROUNDS or (u.op in ("max", "min") and self._is_rounded(u)) for u in users)

    def _quotient(self, type: Type, text: str, divisor: np.float32) -> str:
        self.types.setdefault("divided", device.DIVIDED)
        return self._with_constants("divided", type, text, divisor, np.float32(1) / divisor)

    def _with_constants(self, function: str, type: Type, text: str, *constants: np.float32) -> str:
        """A function of each lane and of constants."""
        written = "".join(f", {self.number(self.kernel.const(float(number), f32))}" for number in constants)
        if type.lanes == 1:
            return f"{function}({text}{written})"
        name = f"{function}_{constants[0].view(np.uint32):08x}_{type}"
        self._define(name, type, (type,), f"{function}(a{written})")
        return f"{name}({text})"

    def _conversion(self, value: TracedValue, text: str) -> str:
        source, target = value.args[0].type, value.type
        convert = device.cast_expression if value.op == "cast" else device.bitcast_expression
        expression = convert(source.kind, target.kind)
        if target.lanes == 1:
            self.type_name(target)
            return f"({device.substitute(expression, 'a', text)})"
        name = f"{target}_{'from' if value.op == 'cast' else 'bits'}_{source}"
        self._define(name, target, (source,), expression)
        return f"{name}({text})"

    def _select(self, value: TracedValue, args: list[str]) -> str:
        condition, type = value.args[0].type, value.type
        if type.lanes == 1 and type.kind != "f16":
            return f"({args[0]} ? {args[1]} : {args[2]})"
        name = f"select_{type}" + ("_lanes" if condition.lanes > 1 else "")
        self._define(name, type, (condition, type, type), "(a ? b : c)")
        return f"{name}({', '.join(args)})"

    def splat(self, type: Type) -> str:
        name = f"splat_{type}"
        self._define(name, type, (type.scalar,), "a")
        return name

    def _across_lanes(self, value: TracedValue) -> str:
        """The function of a vector's lanes together: dot, any or all."""
        op, type = value.op, value.args[0].type
        name = f"{op}_{type}"
        params = ", ".join(f"{self.type_name(type)} {letter}" for letter in "ab"[: len(value.args)])
        result = self.type_name(value.type)
        self.helper(name, f"{INLINE} {result} {name}({params}) {{ return {device.across_lanes(op, type)}; }}")
        return name

    def _power(self, type: Type) -> str:
        """pow by the language's own definition, which is more accurate than CUDA's."""
        name = f"pow_{type}"
        if name in self.functions:
            return name
        if type != f32:
            inner = f"{self._power(f32)}(a, b)"
            if type.kind == "f16":
                self.type_name(type)
                inner = f"to_half({self._power(f32)}(to_float(a), to_float(b)))"
            self._define(name, type, (type, type), inner)
            return name
        definition = Function(math.POLYFILLS["pow"], (f32, f32))
        printer = _FunctionBody(self.kernel, self.features, module=self)
        for letter, p in zip("ab", definition.params, strict=True):
            printer.name_leaf(p, letter)
        printer.print_block(definition.body, (definition.result,))
        head = f"{INLINE} float {name}(float a, float b) {{"
        result = f"  return {printer.text(definition.result)};"
        self.functions[name] = "\n".join([head, *printer.lines, result, "}"])
        return name

    def _define(self, name: str, result: Type, params: tuple[Type, ...], expression: str) -> None:
        """The function of one lane's expression, overloaded by name where the name is an operator's."""
        key = f"{name} {params[0]}" if name.startswith("operator") else name
        if key in self.functions:
            return
        for type in (result, *params):
            self.type_name(type)
        if "half" in expression or "to_float" in expression:
            self.type_name(Type("f16"))
        self.functions[key] = device.lanewise(name, result, params, expression)

    # Subgroups

    def _subgroup_ids(self) -> None:
        x, y, _ = self.kernel.workgroup
        thread = f"(threadIdx.z * {y}u + threadIdx.y) * {x}u + threadIdx.x"
        self.line(f"const unsigned subgroup_lane = ({thread}) % {device.WARP}u;")
        if self.kernel.threads % device.WARP:  # the last warp is not full
            rest = self.kernel.threads % device.WARP
            whole = self.kernel.threads - rest
            self.line(f"const unsigned subgroup_threads = ({thread}) < {whole}u ? {device.WARP}u : {rest}u;")
        else:
            self.line(f"const unsigned subgroup_threads = {device.WARP}u;")

    def _subgroup(self, value: TracedValue, args: list[str]) -> str:
        op, type = value.attr, value.type
        one = f"subgroup_{op}_{type.kind}"
        extra = ["subgroup_threads"]
        if op in ("shuffle_down", "shuffle_xor"):
            self.type_name(type.scalar)
            self.helper(one, device.shuffle(op, type.scalar))
        else:
            self._reduction(one, op, type.scalar)
            extra.append("subgroup_lane")
        if type.lanes == 1:
            return f"{one}({', '.join([*args, *extra])})"
        name = f"subgroup_{op}_{type}"
        letters = "abcd"[: len(args) + len(extra)]
        params = (type, *(u32 for _ in letters[1:]))
        self._define(name, type, params, f"{one}({', '.join(letters)})")
        return f"{name}({', '.join([*args, *extra])})"

    def _reduction(self, name: str, op: str, type: Type) -> None:
        self.type_name(type)
        self.helper(f"subgroup_shuffle_down_{type.kind}", device.shuffle("shuffle_down", type))
        self._define(f"{op}_{type}", type, (type, type), device.lane_expression(op, type.kind))
        self.helper(name, device.reduction(op, type))

    # Memory

    def parameter(self, m: tree.Memory) -> str:
        element = self._element(m)
        return (
            f"const {element}* __restrict__ {memory_name(m)}" if m.access == "read" else f"{element}* {memory_name(m)}"
        )

    def _element(self, m: tree.Memory) -> str:
        """How an element of a buffer is declared: halves and bytes that are computed with as other kinds as words."""
        if m.storage.is_packed:
            return "unsigned" if m.storage.lanes == 4 else {"i8": "signed char", "u8": "unsigned char"}[m.storage.kind]
        if m.storage.kind == "f16" and m.type.kind != "f16":
            return {1: "unsigned short", 2: "unsigned", 3: "uint2", 4: "uint2"}[m.storage.lanes]
        return self.type_name(m.storage)

    def load(self, m: tree.Memory, index: str) -> str:
        return self.taken(m, self.element(m, index))

    def taken(self, m: tree.Memory, element: str) -> str:
        """What the kernel computes with, of an element as it is in memory."""
        return element if m.storage == m.type else f"{self._unpack(m)}({element})"

    def element(self, m: tree.Memory, index: str) -> str:
        """As it is in memory."""
        if m.space == "global" and m.access == "read" and self._element(m) not in self.types:
            return f"__ldg({memory_name(m)} + {index})"
        return f"{memory_name(m)}[{index}]"

    def store(self, memory: tree.Memory, index: str, value: str) -> str:
        name = memory_name(memory)
        if memory.storage != memory.type:
            value = f"{self._pack(memory)}({value})"
        elif memory.storage.lanes == 3 and memory.space == "global":  # leave the fourth place alone
            lanes = " ".join(f"p->{lane} = v.{lane};" for lane in device.LANES[:3])
            type = self.type_name(memory.storage)
            self.helper(f"store_{memory.storage}", f"{INLINE} void store_{memory.storage}({type}* p, {type} v) "
                         f"{{ {lanes} }}")  # fmt: skip
            return f"store_{memory.storage}({name} + {index}, {value});"
        return f"{name}[{index}] = {value};"

    def _unpack(self, m: tree.Memory) -> str:
        """The function from what an element is in memory to what the kernel computes with."""
        name = f"{m.type}_of_{m.storage}"
        result = self.type_name(m.type)
        if m.storage.is_packed and m.storage.lanes == 1:
            value = "a"
        elif m.storage.is_packed:
            self.helper(f"byte_{m.storage.kind}", device.taking(m.storage.kind == "i8"))
            lanes = [f"({device.SCALARS[m.type.kind]})byte_{m.storage.kind}(a, {i})" for i in range(4)]
            value = f"{result}{{{', '.join(lanes)}}}"
        else:
            self._half_conversions()
            words = ["a"] if m.storage.lanes == 2 else ["a.x", "a.y"]
            halves = [f"half_to_float((unsigned short)({w}{shift}))" for w in words for shift in ("", " >> 16")]
            value = f"{result}{{{', '.join(halves[: m.storage.lanes])}}}" if m.storage.lanes > 1 else "half_to_float(a)"
        self.helper(name, f"{INLINE} {result} {name}({self._element(m)} a) {{ return {value}; }}")
        return name

    def _pack(self, m: tree.Memory) -> str:
        name = f"{m.storage}_of_{m.type}"
        element = self._element(m)
        if m.storage.is_packed:
            value = self._packed_bytes(m)
        else:
            self._half_conversions()
            value = {
                1: "float_to_half(a)",
                2: "pack_half2(a.x, a.y)",
                3: "uint2{pack_half2(a.x, a.y), pack_half2(a.z, 0.0f)}",
                4: "uint2{pack_half2(a.x, a.y), pack_half2(a.z, a.w)}",
            }[m.storage.lanes]
        self.helper(name, f"{INLINE} {element} {name}({self.type_name(m.type)} a) {{ return {value}; }}")
        return name

    def _packed_bytes(self, m: tree.Memory) -> str:
        """Four lanes in one word, each saturated to the byte's range."""
        low, high = (-128, 127) if m.storage.kind == "i8" else (0, 255)
        if m.type.kind == "i32":
            self.helper(f"pack_{m.storage.kind}", device.packing("s8" if m.storage.kind == "i8" else "u8"))
            return f"pack_{m.storage.kind}(a.x, a.y, a.z, a.w)"
        kind = "int" if m.storage.kind == "i8" or m.type.kind == "f32" else "unsigned"
        below = f"x < {low} ? {low} : " if kind == "int" else ""
        limit = f"saturate_{m.storage.kind}_{kind}"
        body = f"return (unsigned)({below}x > {high} ? {high} : x) & 255u;"
        self.helper(limit, f"{INLINE} unsigned {limit}({kind} x) {{ {body} }}")
        convert = "__float2int_rz" if m.type.kind == "f32" else ""
        return " | ".join(f"{limit}({convert}(a.{n})) << {8 * i}" for i, n in enumerate(device.LANES))

    def _half_conversions(self) -> None:
        self.types.setdefault("halves", HALF_CONVERSIONS)

    def use_f16(self) -> None:
        self._half_conversions()

    # Statements

    def join(self, block: tree.Block) -> None:
        for s in tree.statements(block):
            found = limited_halves.of_store(s, self._has_no_sign) if isinstance(s, tree.Store) else None
            if found is None or any(self._uses[v.number] != 1 or v.number in self._elsewhere for v in found[1]):
                continue
            function, inner = found
            self._left_to_it |= {v.number for v in inner}
            self._half_conversions()
            self.types.setdefault("limits", device.LIMITS)
            self._whole[inner[0].number] = self.helper(function.name, function.text)

    def _bind(self, value: TracedValue) -> None:
        if value.number in self._left_to_it:
            self.name_leaf(value, self.text(value.args[0]))
        else:
            super()._bind(value)

    def _statement(self, s: tree.Statement) -> None:
        if isinstance(s, tree.Store) and s.value.number in self._whole:
            self._wait_before(s)
            place = f"{memory_name(s.memory)}[{self.text(s.index)}]"
            self.line(f"{place} = {self._whole[s.value.number]}({self.text(s.value)});")
            return
        self._wait_before(s)
        super()._statement(s)

    def _wait_before(self, s: tree.Statement) -> None:
        if self.waits and _touches_arena(s):
            self.waits = False
            self.line(WAIT)
            self.line("launch_dependents();")  # not before: a third kernel would take the second one's place

    def bind(self, name: str, type: Type, text: str) -> str:
        return f"const {self.type_name(type)} {name} = {text};"

    def declare(self, variable: tree.Variable, init: TracedValue) -> None:
        name, type = f"v{variable.number}", self.type_name(variable.type)
        if not variable.is_array:
            self.line(f"{type} {name} = {self.text(init)};")
        elif init.op == "const" and init.attr == 0:
            self.line(f"{type} {name}[{variable.size}] = {{}};")
        else:
            self.line(f"{type} {name}[{variable.size}] = {{{', '.join([self.text(init)] * variable.size)}}};")

    def forever(self) -> str:
        return "for (;;) "

    def barrier(self) -> None:
        self.line("__syncthreads();")


class _FunctionBody(_Module):
    """Prints the body of a function: shares what it needs with the module that calls it, if any."""

    def __init__(
        self, kernel: Kernel, features: Features, places: Sequence[TracedValue] = (), module: _Module | None = None
    ) -> None:
        """`places`: parameters that say where to read what the caller loads."""
        super().__init__(kernel, features)
        self.depth = 1
        self.constants: list[TracedValue] = []  # what the caller loads of what nobody writes
        self.operands: list[TracedValue] = []  # and of other buffers
        self._places, self._plain = places, set[int]()  # memories that constants are loaded from
        self._has_written = False
        if module is not None:
            self.types, self.functions = module.types, module.functions
        self.waits = False

    def loading(self, ahead: Ahead, values: Sequence[TracedValue], parameters: Sequence[str]) -> list[str]:
        """The type of what the caller loads, and the function that it calls."""
        printer = _FunctionBody(self.kernel, self.features, module=self)
        printer._plain = self._plain
        for i, value in enumerate(self._places):
            printer.name_leaf(value, f"p{i}")
        printer.print_values(self.kernel.body, [v.args[0] for v in values])
        found = [printer.element(v.attr, printer.text(v.args[0])) for v in values]
        fields = "".join(f" {self._element(v.attr)} v{i};" for i, v in enumerate(values))
        head = f"{INLINE} {ahead.type} {ahead.load}({', '.join(parameters)}) {{"
        lines = [head, *printer.lines, f"  return {ahead.type}{{{', '.join(found)}}};", "}"]
        return [f"struct {ahead.type} {{{fields} }};", "\n".join(lines)]

    def _statement(self, s: tree.Statement) -> None:
        super()._statement(s)
        self._has_written = self._has_written or not isinstance(s, tree.Bind | tree.Declare | tree.Assign)

    def _bind(self, value: TracedValue) -> None:
        """A load that the caller does is a field of its argument."""
        early = self._early(value) if self._uses[value.number] else None
        if early is None:
            super()._bind(value)
            return
        values, name = early
        values.append(value)
        text, known = self.taken(value.attr, f"{name}.v{len(values) - 1}"), f"t{value.number}"
        self.line(self.bind(known, value.type, text))
        self.name_leaf(value, known)

    def _early(self, value: TracedValue) -> tuple[list[TracedValue], str] | None:
        """Where a load belongs that the caller can do."""
        if not self._places or value.op != "load" or value.block is not self.kernel.body:
            return None
        memory, at = value.attr, value.args[0]
        if memory.space != "global":
            return None
        if memory.access == "read":
            known = at is self._places[-1] or at.op == "const"
            if not known or len(self.constants) >= MOST_CONSTANTS:
                return None
            self._plain.add(memory.number)
            return self.constants, "constants"
        if self._has_written or len(self.operands) >= max(MOST_OPERANDS, len(self._places) - 1):
            return None
        return (self.operands, "operands") if _depends_on(at, self._places) else None

    def parameter(self, m: tree.Memory) -> str:
        """The compiler moves loads of what nobody writes, as far as it is told, behind the wait: it is not told."""
        text = super().parameter(m)
        return text.replace(" __restrict__", "") if m.number in self._plain else text

    def element(self, m: tree.Memory, index: str) -> str:
        return f"{memory_name(m)}[{index}]" if m.number in self._plain else super().element(m, index)

    def may_lose_sign(self, value: TracedValue) -> bool:
        """What native kernels hand over are sums of products, which begin with 0 and are no -0, nor is what is added to
        one; or inputs of products, to whose sums zeros of both signs are the same."""
        if not isinstance(self.kernel, DeviceFunction):
            return False
        sums, seen = [value] if value.op == "add" else [], set[int]()
        while sums:
            for added in sums.pop().args:
                if any(added is p for p in self.kernel.parameters):
                    return True
                if added.op == "add" and id(added) not in seen:
                    seen.add(id(added))
                    sums.append(added)
        return False


def _depends_on(value: TracedValue, parameters: Sequence[TracedValue]) -> bool:
    """Whether it is computed with these alone."""
    todo, seen = [value], set[int]()
    while todo:
        one = todo.pop()
        if one.number in seen or one.op == "const" or any(one is p for p in parameters):
            continue
        if not one.args or not one.is_pure:
            return False
        seen.add(one.number)
        todo += one.args
    return True


def _touches_arena(s: tree.Statement) -> bool:
    """Whether a statement, or one inside it, loads from or stores to memory that other kernels may write."""
    match s:
        case tree.Bind(value=v):
            return v.op == "load" and v.attr.space == "global" and bool(v.attr.access != "read")
        case tree.Store():
            return s.memory.space == "global"
    return any(_touches_arena(inner) for block in tree.blocks(s) for inner in block.statements)
