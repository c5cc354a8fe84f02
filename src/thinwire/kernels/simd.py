"""Writes LLVM vector code for Numba intrinsics, once for every processor.

Numba's loops over blocks of 32 elements pay for alias checks and remainders at every block. Code written here has a
fixed number of lanes and no branch; LLVM splits the vectors into what the processor has (AVX-512, AVX2, NEON).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba.core import cgutils, codegen, config

from thinwire.kernels.layout import TILE

VECTOR = 16
LINE = 64
"""Bytes of a cache line; where it is longer, some lines are asked for twice."""
I8, I16, I32, I64 = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64)
F32, F64 = ir.FloatType(), ir.DoubleType()
_BYTES = {I8: 1, I16: 2, I32: 4, F32: 4, F64: 8, I64: 8}


def host_features() -> list[str]:
    """What the processor that Numba compiles for has, in LLVM's words: "+f16c", "+avx2"."""
    chosen: str | None = getattr(config, "CPU_FEATURES", None)  # from NUMBA_CPU_NAME and NUMBA_CPU_FEATURES
    features: str = codegen.get_host_cpu_features() if chosen is None else chosen
    return features.split(",")


def shuffles() -> bool:
    """Whether Numba's target has the shuffles by a table that :func:`permute_8` and the entropy coder are written with."""
    return "+avx2" in host_features()


class Emitter:
    """What an intrinsic needs to write vector code: memory access, constants and LLVM's named functions."""

    def __init__(self, context: Any, builder: Any, signature: Any, args: Any) -> None:
        self.context, self.b, self.types, self.args = context, builder, signature.args, args

    def pointer(self, index: int, at: Any, element: Any) -> Any:
        """Address of element ``at`` of the array argument ``index``, as a pointer to ``element``."""
        array = self.context.make_array(self.types[index])(self.context, self.b, self.args[index])
        return self.b.bitcast(self.b.gep(array.data, [at]), element.as_pointer())

    def load(self, pointer: Any, element: Any, lanes: int, offset: int = 0) -> Any:
        place = self.b.gep(pointer, [ir.Constant(I64, offset)])
        return self.b.load(self.b.bitcast(place, ir.VectorType(element, lanes).as_pointer()), align=_BYTES[element])

    def store(self, value: Any, pointer: Any, element: Any, offset: int = 0) -> None:
        place = self.b.gep(pointer, [ir.Constant(I64, offset)])
        self.b.store(value, self.b.bitcast(place, value.type.as_pointer()), align=_BYTES[element])

    def constant(self, element: Any, value: float, lanes: int) -> Any:
        return ir.Constant(ir.VectorType(element, lanes), [value] * lanes)

    def splat(self, scalar: Any, lanes: int) -> Any:
        vector = ir.VectorType(scalar.type, lanes)
        first = self.b.insert_element(ir.Constant(vector, ir.Undefined), scalar, ir.Constant(I32, 0))
        mask = ir.Constant(ir.VectorType(I32, lanes), [0] * lanes)
        return self.b.shuffle_vector(first, ir.Constant(vector, ir.Undefined), mask)

    def call(self, name: str, result: Any, *args: Any) -> Any:
        function = cgutils.get_or_insert_function(self.b.module, ir.FunctionType(result, [a.type for a in args]), f"llvm.{name}")
        return self.b.call(function, args)

    def binary(self, name: str, left: Any, right: Any) -> Any:
        bits = 8 * _BYTES[left.type.element]
        return self.call(f"{name}.v{left.type.count}i{bits}", left.type, left, right)

    def reduce(self, name: str, vectors: list[Any]) -> Any:
        """One number out of several vectors of equal length."""
        while len(vectors) > 1:
            pairs = zip(vectors[::2], vectors[1::2], strict=False)
            vectors = [self.binary(name, a, b) for a, b in pairs] + vectors[len(vectors) // 2 * 2 :]
        (one,) = vectors
        width = 8 * _BYTES[one.type.element]
        return self.call(f"vector.reduce.{name}.v{one.type.count}i{width}", one.type.element, one)

    def nearest(self, value: Any) -> Any:
        """fp32 or fp64 below 2**22 in magnitude -> the nearest integers, ties to even, as int32 or int64.

        Adding 1.5 * 2**23 (2**52 for fp64) leaves the integer in the low bits of the sum: one instruction instead of a
        rounding and a conversion. A number that is not finite gives a useless integer, not undefined behaviour.
        """
        single = value.type.element is F32
        pattern = self.constant(I32 if single else I64, 0x4B400000 if single else 0x4338000000000000, value.type.count)
        return self.b.sub(self.nearest_bits(value), pattern)

    def nearest_bits(self, value: Any) -> Any:
        """As :meth:`nearest`, right in the low 22 bits only (51 for fp64)."""
        single = value.type.element is F32
        magic, width = (1.5 * 2.0**23, I32) if single else (1.5 * 2.0**52, I64)
        total = self.b.fadd(value, self.constant(value.type.element, magic, value.type.count))
        return self.b.bitcast(total, ir.VectorType(width, value.type.count))

    def prefetch_next_tile(self, pointer: Any, element: Any, offset: int, write: bool = False) -> None:
        """Ask for the cache line that the next tile has at this place; past the end of memory it does nothing.

        With ``write`` the line comes as this core's own: a store that must ask for its line holds up all stores behind it.
        """
        if offset % (LINE // _BYTES[element]):
            return  # it was asked for at a lower offset
        ahead = self.b.gep(pointer, [ir.Constant(I64, offset + TILE)])
        address = self.b.bitcast(ahead, I8.as_pointer())
        kind = ir.FunctionType(ir.VoidType(), [address.type, I32, I32, I32])
        function = self.b.module.declare_intrinsic("llvm.prefetch", [address.type], kind)
        self.b.call(function, [address, *(ir.Constant(I32, value) for value in (int(write), 2, 1))])


def permute_8(e: Emitter, table: Sequence[float], indices: Any) -> Any:
    """Entries of a table of eight fp32 numbers; of each index (int32) only the low three bits count. Needs :func:`shuffles`."""
    lanes, half, floats = indices.type.count, ir.VectorType(I32, 8), ir.VectorType(F32, 8)
    values = ir.Constant(floats, [float(value) for value in table])
    parts: list[Any] = []
    for first in range(0, lanes, 8):
        pick = ir.Constant(half, list(range(first, first + 8)))
        parts.append(e.call("x86.avx2.permps", floats, values, e.b.shuffle_vector(indices, indices, pick)))
    while len(parts) > 1:
        both = ir.Constant(ir.VectorType(I32, 2 * parts[0].type.count), list(range(2 * parts[0].type.count)))
        parts = [e.b.shuffle_vector(a, b, both) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]
