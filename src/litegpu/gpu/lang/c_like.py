"""What printers of languages like C share: the entry point around a kernel's body, operators, functions it needs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping

from litegpu.gpu.lang import tree
from litegpu.gpu.lang.features import Features
from litegpu.gpu.lang.kernel import Kernel
from litegpu.gpu.lang.limits import check_limits
from litegpu.gpu.lang.printer import Printer
from litegpu.gpu.lang.types import KernelError, Type, u32
from litegpu.gpu.lang.value import TracedValue
from litegpu.gpu.lang.verify import verify

#: Of operations that every such language writes between their operands; which kinds it does so for, each says.
INFIX: Mapping[str, str] = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "mod": "%", "and": "&", "or": "|", "xor": "^",
    "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=",
}  # fmt: skip


def check_kernel(kernel: Kernel, features: Features, reserved: frozenset[str], language: str) -> None:
    """Raise KernelError if the kernel breaks a rule, needs what `features` lack, or has a name of `reserved`."""
    if not kernel.verified:
        verify(kernel)
    check_limits(kernel, features, reserved, language)


class CLikePrinter(Printer):
    """Prints a kernel's entry point; collects the functions that it needs in front of it."""

    index_type: str  # what a loop's number is declared as

    def __init__(self, kernel: Kernel, features: Features) -> None:
        super().__init__()
        self.kernel, self.features = kernel, features
        self.functions: dict[str, str] = {}

    # What a language defines

    @abstractmethod
    def splat(self, type: Type) -> str:
        """What makes a vector of equal lanes, as it is called."""

    @abstractmethod
    def number(self, value: TracedValue) -> str:
        """A constant that is neither bool nor u32: one lane of it."""

    @abstractmethod
    def hardware_id(self, name: str, axis: int) -> str:
        """A built-in number, of the dispatch as it is launched."""

    @abstractmethod
    def load(self, memory: tree.Memory, index: str) -> str: ...

    @abstractmethod
    def computed(self, value: TracedValue, args: list[str]) -> str:
        """operation() of what reads neither memory nor a variable."""

    @abstractmethod
    def use_f16(self) -> None:
        """Arithmetic in 16 bits comes, which the device has."""

    def before_body(self) -> None:
        """Print what the body needs in front of it."""
        return

    # The entry point

    def print_body(self) -> None:
        """The kernel's body. A grid folded into two dimensions is unfolded, and what lies beyond it skipped."""
        k = self.kernel
        self.depth = 1
        if k.dispatch != k.grid:
            columns, rows, _ = k.dispatch
            first, second = (self.hardware_id("group_id", axis) for axis in (0, 1))
            self.line(self.bind("group_x", u32, f"{first} + {second} * {columns}u"))
            if columns * rows != k.grid[0]:
                self._open(f"if (group_x < {k.grid[0]}u) ")
        self.before_body()
        self.print_block(k.body)
        while self.depth > 1:
            self._close()

    # Leaves

    def constant(self, value: TracedValue) -> str:
        number, kind = value.constant, value.type.kind
        if kind == "bool":
            text = "true" if number else "false"
        else:
            text = f"{number}u" if kind == "u32" else self.number(value)
        return f"{self.splat(value.type)}({text})" if value.type.lanes > 1 else text

    def builtin(self, value: TracedValue) -> str:
        name, axis = value.attr
        if name == "group_id" and self.kernel.dispatch != self.kernel.grid:
            return "group_x"
        return self.hardware_id(name, axis)

    # Expressions and statements

    def operation(self, value: TracedValue, args: list[str]) -> str:
        if value.op == "load":
            return self.load(value.attr, args[0])
        if value.op == "read":
            return self.local(*value.attr)
        return self.computed(value, args)

    def for_header(self, index: str, start: str, stop: str, step: str) -> str:
        return f"for ({self.index_type} {index} = {start}; {index} < {stop}; {index} += {step})"

    def helper(self, name: str, text: str) -> str:
        """The name of a function, which is defined once."""
        self.functions.setdefault(name, text)
        return name

    def need_f16(self, what: str) -> None:
        """Raise KernelError if the device has no arithmetic in 16 bits, which `what` needs."""
        if not self.features.float16:
            raise KernelError(f"kernel {self.kernel.name}: {what} needs float16, which the device lacks")
        self.use_f16()
