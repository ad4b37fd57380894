"""Print a kernel as WGSL."""

from __future__ import annotations

import math

import numpy as np

from litegpu.gpu.lang import math as own_math
from litegpu.gpu.lang import tree
from litegpu.gpu.lang.c_like import INFIX, CLikePrinter, check_kernel
from litegpu.gpu.lang.features import Features
from litegpu.gpu.lang.functions import Function
from litegpu.gpu.lang.kernel import Kernel
from litegpu.gpu.lang.printer import decimal, memory_name
from litegpu.gpu.lang.types import KernelError, Type
from litegpu.gpu.lang.value import TracedValue

# The words of WGSL that are shaped like a kernel's name, and the functions that printed code calls.
_WORDS = """alias break case const const_assert continue continuing default diagnostic discard else enable false fn for
if let loop override requires return struct switch true var while array atomic bool f16 f32 i32 u32 vec2 vec3 vec4
select bitcast abs min max sign floor ceil round trunc sqrt inverseSqrt fma dot any all local_id group_id async await
asm auto class delete do double enum export extern final float from get goto handle import inline int interface layout
long meta mod module move mut namespace new null operator package private protected public readonly ref register
resource self set shader shared short sizeof static std super target template this throw trait try type typedef
typename typeof undefined union unsafe unsigned use using vec virtual void volatile where with workgroup write yield"""
RESERVED = frozenset(_WORDS.split())

_INFIX = {**INFIX, "idiv": "/"}
_CALLS = {
    **{name: name for name in ("abs", "floor", "ceil", "round", "trunc", "fma", "dot", "any", "all")},
    "round_small": "round",
    "min": "min",  # integers only, as is max
    "max": "max",
    "sign": "sign",  # i32 only
}
_SUBGROUP = {
    "add": "subgroupAdd",
    "max": "subgroupMax",
    "min": "subgroupMin",
    "shuffle_down": "subgroupShuffleDown",
    "shuffle_xor": "subgroupShuffleXor",
}
# Vulkan and WGSL promise too little of these: the text brings its own (see `own_math`).
_POLYFILLED = ("exp", "log", "sin", "cos", "tanh", "pow", "to_i32_saturating")

_UNPACK_HALF4 = """fn unpack_half4(w: vec2<u32>) -> vec4<f32> {
  return vec4<f32>(unpack2x16float(w.x), unpack2x16float(w.y));
}"""
_PACK_HALF4 = """fn pack_half4(x: vec4<f32>) -> vec2<u32> {
  return vec2<u32>(pack2x16float(x.xy), pack2x16float(x.zw));
}"""


def print_wgsl(kernel: Kernel, features: Features) -> str:
    """The WGSL module of `kernel`; its entry point has the kernel's name, binding n is buffer n.

    Raises KernelError if the kernel breaks a rule or needs what `features` lacks.
    """
    check_kernel(kernel, features, RESERVED, "WGSL")
    return _Module(kernel, features).print()


class _Module(CLikePrinter):
    """Prints the entry point; collects the functions and constants that it needs in front of it."""

    index_type = "var"

    def __init__(self, kernel: Kernel, features: Features) -> None:
        super().__init__(kernel, features)
        self.bits: set[int] = set()  # of constants that WGSL cannot spell
        self.half = any(m.storage.kind == "f16" for m in self._memories())
        self.needs_f16 = any(m.storage.kind == "f16" and self._native(m) for m in self._memories())

    def print(self) -> str:
        k = self.kernel
        self.print_body()
        x, y, z = k.workgroup
        head = ["enable f16;"] if self.needs_f16 else []
        head += [self._declaration(m) for m in self._memories()]
        head += [f"var<private> bits_{b:08x}: u32 = 0x{b:08x}u;" for b in sorted(self.bits)]
        head += self.functions.values()
        params = "@builtin(local_invocation_id) local_id: vec3<u32>, @builtin(workgroup_id) group_id: vec3<u32>"
        if k.needs_subgroups:
            params += ", @builtin(subgroup_size) subgroup_size: u32"
            params += ", @builtin(subgroup_invocation_id) subgroup_lane: u32"
        entry = [f"@compute @workgroup_size({x}, {y}, {z})", f"fn {k.name}({params}) {{", *self.lines, "}"]
        return "\n".join(head + entry) + "\n"

    # Types and leaves

    def type_name(self, type: Type) -> str:
        if type.kind == "f16":
            self.need_f16(f"{type} arithmetic")
        return f"vec{type.lanes}<{type.kind}>" if type.lanes > 1 else type.kind

    def splat(self, type: Type) -> str:
        return self.type_name(type)

    def hardware_id(self, name: str, axis: int) -> str:
        return f"{name}.{'xyz'[axis]}" if name in ("local_id", "group_id") else name

    def number(self, value: TracedValue) -> str:
        number, kind = value.constant, value.type.kind
        if kind == "i32":
            return f"i32({number})" if number is not None and number < 0 else f"{number}i"
        if kind == "f16":
            self.need_f16("an f16 constant")
        bits = value.attr if kind == "f32" else int(np.float32(number).view(np.uint32))
        if bits & 0x7F800000 == 0x7F800000:  # infinity or NaN, neither of which may be a constant expression
            self.bits.add(bits)
            text = f"bitcast<f32>(bits_{bits:08x})"
        elif bits & 0x7F800000 == 0 and bits & 0x7FFFFFFF:  # subnormal
            text = f"bitcast<f32>(0x{bits:08x}u)"
        else:
            text = decimal(np.float32(number)) + "f"
        return f"f16({text})" if kind == "f16" else text

    # Expressions

    def repeats(self, value: TracedValue) -> bool:
        if value.op in ("min", "max", "sign", "sqrt", "rsqrt", "rough_exp2") and value.type.is_float:
            return True
        return value.op == "irem" or _cancels(value) or _compares_itself(value)

    def computed(self, value: TracedValue, args: list[str]) -> str:
        op, type = value.op, value.type
        if op == "subgroup":
            return f"{_SUBGROUP[value.attr]}({', '.join(args)})"
        if op in ("cast", "splat", "vec"):
            return f"{self.type_name(type)}({', '.join(args)})"
        if op == "bitcast":
            return f"bitcast<{self.type_name(type)}>({args[0]})"
        if op == "lane":
            return f"{args[0]}.{'xyzw'[value.attr]}"
        if op == "select":
            return f"select({args[2]}, {args[1]}, {args[0]})"
        if op in _POLYFILLED:
            return self._polyfill(value, args)
        return self._arithmetic(value, args)

    def _arithmetic(self, value: TracedValue, args: list[str]) -> str:
        op, operand = value.op, value.args[-1].type
        if operand.is_float:
            if op in ("min", "max"):
                return self._bounded(value, *args)
            if op == "sign":
                name, x = self.type_name(operand), args[0]
                return f"select(select({x}, {name}(-1), {x} < {name}(0)), {name}(1), {x} > {name}(0))"
            if op == "is_nan":
                return self._is_nan(operand, args[0])
            if op == "rough_exp2":  # drivers limit x first, which makes a number of NaN
                return f"select(exp2({args[0]}), {args[0]}, {self._is_nan(operand, args[0])})"
            if op == "rough_reciprocal":
                return f"(1.0f / {args[0]})"
            if op in ("sqrt", "rsqrt"):
                return self._root(op, operand, args[0])
            if _cancels(value):
                return self._cancelled(value, *args)
            if _compares_itself(value):
                return f"{'' if op == 'ne' else '!'}{self._is_nan(operand, args[0])}"
        if op in ("nearest", "nearest_small"):
            return f"{self.type_name(value.type)}(round({args[0]}))"
        if op == "dot4":
            return self._dot4(operand, args)
        if op == "high_product":
            return self._high_product(operand, args)
        if op in ("shl", "shr"):
            return f"({args[0]} {'<<' if op == 'shl' else '>>'} {self._shift_amount(value.args[1], args[1])})"
        if op == "irem":  # Vulkan leaves the sign of % open where an operand is negative
            (a, b), name = args, self.type_name(operand)
            return f"select({a} - {a} / {b} * {b}, {name}(0), {b} == {name}(0))"
        if operand.kind == "bool" and op == "xor":
            return f"({args[0]} != {args[1]})"
        if op == "not":
            return f"({'!' if operand.kind == 'bool' else '~'}{args[0]})"
        if op == "neg":
            return f"(-{args[0]})"
        if op in _INFIX:
            return f"({args[0]} {_INFIX[op]} {args[1]})"
        return f"{_CALLS[op]}({', '.join(args)})"

    def _dot4(self, type: Type, args: list[str]) -> str:
        """Lane by lane: WGSL has it for one word alone."""
        one = "{c} + dot4I8Packed(bitcast<u32>({a}), bitcast<u32>({b}))"
        if type.lanes == 1:
            return f"({one.format(a=args[0], b=args[1], c=args[2])})"
        name, kind = f"dot4_x{type.lanes}", self.type_name(type)
        lanes = [one.format(**{v: f"{v}.{lane}" for v in "abc"}) for lane in "xyzw"[: type.lanes]]
        body = f"return {kind}({', '.join(lanes)});"
        return self.helper(name, f"fn {name}(a: {kind}, b: {kind}, c: {kind}) -> {kind} {{ {body} }}") + (
            f"({', '.join(args)})"
        )

    def _high_product(self, type: Type, args: list[str]) -> str:
        """Of magnitudes, by products of half words; a half less one where the product is negative, or could be."""
        lanes, signed, words = type.lanes, self.type_name(type), self.type_name(Type("u32", type.lanes))
        name, one, low, bits = f"high_product_x{lanes}", f"{words}(1u)", f"{words}(0xffffu)", f"{words}(16u)"
        body = f"""fn {name}(x: {signed}, y: {signed}) -> {signed} {{
  let negative = (x ^ y) < {signed}(0);
  let a = {words}(abs(x));
  let b = {words}(abs(y));
  let first = (a & {low}) * (b & {low});
  let second = (a & {low}) * (b >> {bits});
  let third = (a >> {bits}) * (b & {low});
  let middle = (first >> {bits}) + (second & {low}) + (third & {low});
  let bottom = (first & {low}) | (middle << {bits});
  let nudged = bottom + {words}(0x40000000u) - select({words}(0u), {one}, negative);
  let top = (a >> {bits}) * (b >> {bits}) + (second >> {bits}) + (third >> {bits}) + (middle >> {bits})
    + select({words}(0u), {one}, nudged < bottom);
  let found = {signed}((top << {one}) | (nudged >> {words}(31u)));
  return select(found, -found, negative);
}}"""
        return f"{self.helper(name, body)}({', '.join(args)})"

    def _bounded(self, value: TracedValue, a: str, b: str) -> str:
        """min(a, b) or max(a, b) that is `a` if that is NaN. Drivers may take it that there is no NaN, and NVIDIA's
        makes native operations that drop it of the comparison; the bits are compared too, then. That costs a tenth of
        MobileNet's time in float16, for which the comparison has to do."""
        chosen = f"select({a}, {b}, {b} < {a})" if value.op == "min" else f"select({a}, {b}, {a} < {b})"
        return chosen if self.half else f"select({chosen}, {a}, {self._is_nan(value.type, a)})"

    def _root(self, op: str, type: Type, x: str) -> str:
        """sqrt(x) or 1 / sqrt(x). Drivers take it that the results of their own are not negative, nor NaN, so that the
        square of a root is x, and simplify what comes after; so those of negative numbers and -0 are put in."""
        name = self.type_name(type)
        if op == "sqrt":
            return f"select(sqrt({x}), {self._special(type, math.nan)}, {x} < {name}(0))"
        bits, of_zero = self.type_name(Type("u32", type.lanes)), self._special(type, -math.inf)
        wide = x if type.kind == "f32" else f"{self.type_name(Type('f32', type.lanes))}({x})"
        root = f"select(inverseSqrt({x}), {self._special(type, math.nan)}, {x} < {name}(0))"
        return f"select({root}, {of_zero}, bitcast<{bits}>({wide}) == {bits}(0x80000000u))"

    def _cancelled(self, value: TracedValue, a: str, b: str) -> str:
        """What drivers know without looking at the operand: 0, 1 or an infinity. NaN for some operands, though."""
        type, op = value.type, value.op
        name, words = self.type_name(type), self.type_name(Type("u32", type.lanes))
        first, second = value.args
        x = b if first.op == "const" else a
        bits, sign = f"(bitcast<{words}>({x}) & {words}(0x7fffffffu))", f"{words}(0x80000000u)"
        turned = f"((bitcast<{words}>({a}) ^ bitcast<{words}>({b})) & {sign})"  # the sign of a product or quotient
        large, zero = f"{bits} >= {words}(0x7f800000u)", f"({bits} - {words}(1u)) >= "  # 0 - 1 is the largest
        result, special = f"{name}(0)", large  # x - x, x + -x
        if first.op == "const" or second.op == "const":
            result = f"bitcast<{name}>({turned})"  # x * 0, x / infinity
            if op == "div" and first.op == "const":  # 0 / x
                special = f"{zero}{words}(0x7f800000u)"
            elif op == "div" and second.is_constant(0):
                result, special = f"bitcast<{name}>({turned} | {words}(0x7f800000u))", f"{zero}{words}(0x7f800000u)"
        elif op == "div":  # x / x
            result, special = f"{name}(1)", f"{zero}{words}(0x7f7fffffu)"
        return f"select({result}, {self._special(type, math.nan)}, {special})"

    def _special(self, type: Type, number: float) -> str:
        """NaN or an infinity in every lane."""
        bits = int(np.float32(number).view(np.uint32))
        self.bits.add(bits)
        return f"{self.type_name(type)}(bitcast<f32>(bits_{bits:08x}))"

    def _is_nan(self, type: Type, text: str) -> str:
        name = self.type_name(Type("u32", type.lanes))
        wide = text if type.kind == "f32" else f"{self.type_name(Type('f32', type.lanes))}({text})"
        return f"((bitcast<{name}>({wide}) & {name}(0x7fffffffu)) > {name}(0x7f800000u))"

    def _shift_amount(self, amount: TracedValue, text: str) -> str:
        name = self.type_name(Type("u32", amount.type.lanes))
        if amount.op == "const":
            return f"{name}({amount.attr & 31}u)" if amount.type.lanes > 1 else f"{amount.attr & 31}u"
        return f"({name}({text}) & {name}(31u))"

    def _polyfill(self, value: TracedValue, args: list[str]) -> str:
        """A call of the function that computes this operation, in float32 whatever the kind."""
        operand, lanes = value.args[0].type, value.type.lanes
        name = f"{value.op}_x{lanes}"
        if name not in self.functions:
            self.functions[name] = ""  # keeps its place if printing it meets another
            self.functions[name] = self._function(name, own_math.POLYFILLS[value.op], len(args), Type("f32", lanes))
        if operand.kind == "f32":
            return f"{name}({', '.join(args)})"
        wide = self.type_name(Type("f32", lanes))
        return f"{self.type_name(value.type)}({name}({', '.join(f'{wide}({a})' for a in args)}))"

    def _function(self, name: str, definition: own_math.Definition, arity: int, type: Type) -> str:
        function = Function(definition, (type,) * arity)
        printer = _FunctionBody(self)
        for i, p in enumerate(function.params):
            printer.name_leaf(p, f"p{i}")
        printer.print_block(function.body, (function.result,))
        params = ", ".join(f"p{i}: {self.type_name(p.type)}" for i, p in enumerate(function.params))
        head = f"fn {name}({params}) -> {self.type_name(function.result.type)} {{"
        return "\n".join([head, *printer.lines, f"  return {printer.text(function.result)};", "}"])

    # Memory

    def _memories(self) -> list[tree.Memory]:
        return [*self.kernel.buffers, *self.kernel.shared_memories]

    def _native(self, memory: tree.Memory) -> bool:
        """Whether elements are declared with their storage type, rather than packed into 32-bit words."""
        if memory.storage.kind == "f16":
            return self.features.float16 or memory.space == "shared"
        return not memory.storage.is_packed

    def _declaration(self, m: tree.Memory) -> str:
        if m.space == "shared":
            return f"var<workgroup> {memory_name(m)}: array<{self.type_name(_in_shared_memory(m))}, {m.size}>;"
        if self._native(m):
            element = self.type_name(m.storage)
        elif m.storage.kind == "f16" and m.storage.lanes in (3, 4):
            element = "vec2<u32>"
        else:
            element = "u32"
        return f"@group(0) @binding({m.number}) var<storage, {m.access}> {memory_name(m)}: array<{element}>;"

    def load(self, m: tree.Memory, index: str) -> str:
        element = f"{memory_name(m)}[{index}]"
        compute = self.type_name(m.type)
        if m.storage.kind == "bool":
            return f"({element} != {self.type_name(_in_shared_memory(m))}())"
        if self._native(m):
            return element if m.storage == m.type else f"{compute}({element})"
        if m.storage.is_packed and m.storage.lanes == 1:
            word = f"{memory_name(m)}[({index}) >> 2u]"
            word = f"bitcast<i32>({word})" if m.storage.kind == "i8" else word
            byte = f"extractBits({word}, (({index}) & 3u) * 8u, 8u)"
            return byte if m.type.kind != "f32" else f"{compute}({byte})"
        if m.storage.is_packed:
            unpacked = f"unpack4x{m.storage.kind.upper()}({element})"
            return unpacked if m.type.kind != "f32" else f"{compute}({unpacked})"
        if m.storage.lanes == 1:
            return f"unpack2x16float({memory_name(m)}[{index} >> 1u])[{index} & 1u]"
        if m.storage.lanes == 2:
            return f"unpack2x16float({element})"
        unpacked = self.helper("unpack_half4", _UNPACK_HALF4) + f"({element})"
        return f"{unpacked}.xyz" if m.storage.lanes == 3 else unpacked

    def store(self, memory: tree.Memory, index: str, value: str) -> str:
        return f"{memory_name(memory)}[{index}] = {self._packed(memory, value)};"

    def _packed(self, m: tree.Memory, value: str) -> str:
        if m.storage.kind == "bool":
            return f"{self.type_name(_in_shared_memory(m))}({value})"
        if self._native(m):
            return value if m.storage == m.type else f"{self.type_name(m.storage)}({value})"
        if m.storage.is_packed:
            kind = "i32" if m.storage.kind == "i8" else "u32"
            whole = value if m.type.kind == kind else f"vec4<{kind}>({value})"
            return f"pack4x{m.storage.kind.upper()}Clamp({whole})"
        if m.storage.lanes == 1:
            raise KernelError(
                f"kernel {self.kernel.name}: buffer {m.name}: storing single f16 values needs a device with float16; "
                "store f16x2 or f16x4"
            )
        if m.storage.lanes == 2:
            return f"pack2x16float({value})"
        four = value if m.storage.lanes == 4 else f"vec4<f32>({value}, 0.0)"
        return self.helper("pack_half4", _PACK_HALF4) + f"({four})"

    def use_f16(self) -> None:
        self.needs_f16 = True

    # Statements

    def bind(self, name: str, type: Type, text: str) -> str:
        return f"let {name} = {text};"

    def declare(self, variable: tree.Variable, init: TracedValue) -> None:
        name, type = f"v{variable.number}", self.type_name(variable.type)
        if not variable.is_array:
            self.line(f"var {name}: {type} = {self.text(init)};")
            return
        array = f"array<{type}, {variable.size}>"
        if init.op == "const" and init.attr == 0:
            self.line(f"var {name} = {array}();")  # spelt out: naga does not zero a bare var again in a loop
        else:
            self.line(f"var {name} = {array}({', '.join([self.text(init)] * variable.size)});")

    def forever(self) -> str:
        return "loop "

    def barrier(self) -> None:
        self.line("workgroupBarrier();")
        if self.kernel.loaded & self.kernel.stored:
            self.line("storageBarrier();")


def _cancels(value: TracedValue) -> bool:
    """Whether a driver that knows no NaN and no infinity needs no operand: x - x, x + -x, x / x, x * 0, 0 / x, x / 0,
    x / infinity."""
    if value.type.kind != "f32" or value.op not in ("sub", "div", "add", "mul"):
        return False
    a, b = value.args
    match value.op:
        case "add":
            return (a.op == "neg" and a.args[0] is b) or (b.op == "neg" and b.args[0] is a)
        case "sub":
            return a is b
        case "mul":
            return a.is_constant(0) or b.is_constant(0)
    return a is b or a.is_constant(0) or (b.op == "const" and b.constant in (0, math.inf, -math.inf))


def _compares_itself(value: TracedValue) -> bool:
    """Whether a driver that knows no NaN knows the result: x == x, x != x, x <= x, x >= x."""
    same = len(value.args) == 2 and value.args[0] is value.args[1]
    return same and value.op in ("eq", "ne", "le", "ge") and value.args[0].type.is_float


def _in_shared_memory(m: tree.Memory) -> Type:
    """The type of its elements there: booleans are words, as NVIDIA's driver gives bool too little room."""
    return Type("u32", m.storage.lanes) if m.storage.kind == "bool" else m.storage


class _FunctionBody(_Module):
    """Prints a polyfill: shares what it needs with the module that calls it."""

    def __init__(self, module: _Module) -> None:
        super().__init__(module.kernel, module.features)
        self.depth = 1
        self.functions, self.bits = module.functions, module.bits
