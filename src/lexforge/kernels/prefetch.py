"""A hint to the processor that an element of an array is about to be read.

The documents that a search scores lie far apart in memory, and the processor cannot guess the next one. With
the hint they are on their way while the documents before them are scored: measured on an AMD EPYC over an
index that is larger than its cache, a document took 129 ns in place of 227. A hint changes no result.
"""

from __future__ import annotations

from typing import Any

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


@intrinsic
def prefetch(typing_context: Any, array: Any, index: Any) -> Any:
    """Ask for the cache line of `array[index]`, within compiled functions; the index is not checked.

    Args:
        typing_context: Given by numba.
        array: A one-dimensional array that is contiguous.
        index: `int64`; an address outside the array is allowed, because a hint reads nothing.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        address = builder.bitcast(builder.gep(data, [arguments[1]]), cgutils.voidptr_t)
        number = cgutils.int32_t
        signature = cgutils.ir.FunctionType(cgutils.ir.VoidType(), [address.type, number, number, number])
        hint = builder.module.declare_intrinsic("llvm.prefetch", (address.type,), signature)
        # The constants say: for reading, into every level of the cache, as data.
        builder.call(hint, [address, number(0), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(array, types.int64), generate
