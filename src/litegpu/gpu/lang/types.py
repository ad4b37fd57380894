"""The types of the kernel language: scalars and short vectors of float32, float16, int32, uint32 and bool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, Self, TypeVar

from litegpu.errors import LiteGpuError

KINDS = ("f32", "f16", "i32", "u32", "bool")
PACKED_KINDS = ("i8", "u8")  # storage only: four lanes in one 32-bit word, or single bytes to be read
FLOAT_KINDS = ("f32", "f16")
BYTES = {"f32": 4, "f16": 2, "i32": 4, "u32": 4, "bool": 4, "i8": 1, "u8": 1}


class KernelError(LiteGpuError, TypeError):
    """A kernel is wrong, or needs what the device lacks. The message begins with the kernel author's file and line."""


T = TypeVar("T")
V = TypeVar("V", bound="Convertible")


class Converter(Protocol[T]):
    """What converts values, as the kernel that they belong to does."""

    def convert(self, value: T, type: Type) -> T: ...


class Convertible(Protocol):
    """A value that a type can be called with: it knows what converts it."""

    @property
    def kernel(self) -> Converter[Self]: ...


@dataclass(frozen=True)
class Type:
    """`kind` of each lane and the number of `lanes` (1, 2, 3 or 4). Calling a type converts a value: `f32(v)`."""

    kind: str
    lanes: int = 1

    def __post_init__(self) -> None:
        if self.kind not in KINDS + PACKED_KINDS:
            raise KernelError(f"{self.kind!r} is not a kind: use one of {', '.join(KINDS + PACKED_KINDS)}")
        if self.lanes not in (1, 2, 3, 4) or (self.kind in PACKED_KINDS and self.lanes not in (1, 4)):
            raise KernelError(f"{self.kind} cannot have {self.lanes!r} lanes")

    def __str__(self) -> str:
        return self.kind + (f"x{self.lanes}" if self.lanes > 1 else "")

    def __call__(self, value: V) -> V:
        convert = getattr(getattr(value, "kernel", None), "convert", None)
        if convert is None:
            raise KernelError(f"{self}({value!r}): only kernel values convert; use k.const({value!r}, {self})")
        result: V = convert(value, self)
        return result

    @property
    def scalar(self) -> Type:
        return Type(self.kind)

    @property
    def is_float(self) -> bool:
        return self.kind in FLOAT_KINDS

    @property
    def is_integer(self) -> bool:
        return self.kind in ("i32", "u32")

    @property
    def is_packed(self) -> bool:
        return self.kind in PACKED_KINDS

    @property
    def nbytes(self) -> int:
        """Bytes of one element in a buffer (three lanes take the room of four)."""
        return BYTES[self.kind] * (4 if self.lanes == 3 else self.lanes)


def vec(scalar: Type, lanes: int) -> Type:
    """The vector type of `lanes` lanes of the same kind as `scalar`."""
    return Type(scalar.kind, lanes)


f32, f16, i32, u32, boolean = (Type(kind) for kind in KINDS)
f32x2, f32x4 = vec(f32, 2), vec(f32, 4)
f16x2, f16x4 = vec(f16, 2), vec(f16, 4)
i32x2, i32x4 = vec(i32, 2), vec(i32, 4)
u32x2, u32x4 = vec(u32, 2), vec(u32, 4)
boolx2, boolx4 = vec(boolean, 2), vec(boolean, 4)
i8, u8 = (Type(kind) for kind in PACKED_KINDS)
i8x4, u8x4 = vec(i8, 4), vec(u8, 4)
