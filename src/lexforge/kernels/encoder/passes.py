"""The compiled passes over the elements of a tensor, float32 or the bits of bfloat16 as uint16.

Sums are float32 in either case. NaN and infinity pass through, so that a run that breaks is noticed.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, overload

from lexforge.kernels.parallel import inner, parallel

# Sums in any fixed order and fused multiplications, which vector registers need; NaN and infinity are kept.
_FAST = {"contract", "reassoc", "arcp", "nsz"}
_CHUNK, _ROWS = 8192, 64  # elements and rows that a thread takes at once
_INT32 = cgutils.ir.IntType(32)


@intrinsic
def _float_of_bits(typing_context: Any, bits: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], cgutils.ir.FloatType())

    return types.float32(types.uint32), generate


@intrinsic
def _bits_of_float(typing_context: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], _INT32)

    return types.uint32(types.float32), generate


@intrinsic
def _key_of_float(typing_context: Any, value: Any) -> Any:
    """An int32 in the order of the floats; NaN stands above or below all of them."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        bits = builder.bitcast(arguments[0], _INT32)
        return builder.xor(bits, builder.lshr(builder.ashr(bits, _INT32(31)), _INT32(1)))

    return types.int32(types.float32), generate


@intrinsic
def _float_of_key(typing_context: Any, key: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        bits = builder.xor(arguments[0], builder.lshr(builder.ashr(arguments[0], _INT32(31)), _INT32(1)))
        return builder.bitcast(bits, cgutils.ir.FloatType())

    return types.float32(types.int32), generate


def _wide(element):
    """An element as float32; numba takes the version below."""


@overload(_wide, inline="always")
def _compiled_wide(element):
    if element == types.uint16:
        return lambda element: _float_of_bits(np.uint32(np.uint32(element) << np.uint32(16)))
    return lambda element: element


def _narrow(value, like):
    """A float32 in the format of another element; numba takes the version below."""


@overload(_narrow, inline="always")
def _compiled_narrow(value, like):
    if like == types.uint16:

        def rounded(value, like):  # to the nearest bfloat16, and between two of them to the even one
            bits = _bits_of_float(value)
            even = np.uint32((bits >> np.uint32(16)) & np.uint32(1))
            return np.uint16(np.uint32(bits + np.uint32(0x7FFF) + even) >> np.uint32(16))

        return rounded
    return lambda value, like: value


@inner(inline="always")
def _hashed(place, low, high):
    """The random number of a place, as `lexforge.kernels.encoder.reference.kept` defines it."""
    x = np.uint32(place) ^ low
    x = np.uint32(x ^ (x >> np.uint32(16)))
    x = np.uint32(x * np.uint32(0x7FEB352D))
    x = np.uint32(x ^ (x >> np.uint32(15)) ^ high)
    x = np.uint32(x * np.uint32(0x846CA68B))
    return np.uint32(x ^ (x >> np.uint32(16)))


@inner(fastmath={"contract"})
def _exp2(x):
    """2^x for x <= 0, to 2e-7 of it; 0 below 2^-126."""
    is_tiny = x < np.float32(-126)
    x = np.float32(-126) if is_tiny else x  # NaN stays NaN
    shifted = np.float32(x + np.float32(12582912))  # 1.5 * 2^23: its last bits are those of round(x)
    rest = np.float32(x - np.float32(shifted - np.float32(12582912)))  # in [-.5, .5]
    y = np.float32(1.535336188319500e-4)  # the polynomial of exp2f in Cephes (S. Moshier)
    y = np.float32(y * rest + np.float32(1.339887440266574e-3))
    y = np.float32(y * rest + np.float32(9.618437357674640e-3))
    y = np.float32(y * rest + np.float32(5.550332471162809e-2))
    y = np.float32(y * rest + np.float32(2.402264791363012e-1))
    y = np.float32(y * rest + np.float32(6.931472028550421e-1))
    y = np.float32(y * rest + np.float32(1))
    power = np.uint32(_bits_of_float(shifted) << np.uint32(23))  # added to the exponent of y
    return np.float32(0) if is_tiny else _float_of_bits(np.uint32(_bits_of_float(y) + power))


@inner
def _largest(row):
    """The largest number of a row, or NaN where one is NaN, by integers: they need no care for NaN."""
    top = np.int32(-(2**31))
    for k in range(len(row)):
        key = _key_of_float(row[k])
        top = key if key > top else top
    return _float_of_key(top)


@parallel(fastmath=_FAST)
def drop(x, result, low, high, limit, factor):
    """Write `x * factor` where the hash of a place is at least `limit`, and 0 elsewhere; both are flat."""
    for chunk in numba.prange((x.size + _CHUNK - 1) // _CHUNK):
        first = chunk * _CHUNK
        of, to = x[first : first + _CHUNK], result[first : first + _CHUNK]
        for i in range(len(of)):
            stays = _hashed(np.uint32(first) + np.uint32(i), low, high) >= limit
            to[i] = _narrow(np.float32(_wide(of[i]) * factor if stays else np.float32(0)), of[i])


@parallel(fastmath=_FAST, error_model="numpy")
def softmax(scores, bias, rows_of_bias, lengths, factor, dropped, low, high, limit, keep):
    """Turn scores into weights, in place, and write the weights after dropout.

    Args:
        scores: `[R, K]`, rows in the order of text, head and query.
        bias: `[N * lengths, K] float32`, 0 or -inf.
        rows_of_bias: Rows of scores that share `lengths` rows of the bias.
        lengths: Rows of the bias that these rows take in turn, 1 or the number of queries.
        factor: Of the scores; weights are powers of 2.
        dropped: `[R, K]`, of its own memory.
        low: First half of the seed.
        high: Second half of the seed.
        limit: The smallest hash of a weight that stays.
        keep: Its factor.
    """
    rows, width = scores.shape
    for part in numba.prange((rows + _ROWS - 1) // _ROWS):
        row = np.empty(width, np.float32)
        for r in range(part * _ROWS, min(rows, (part + 1) * _ROWS)):
            b = r // rows_of_bias * lengths + r % lengths
            for k in range(width):
                row[k] = np.float32(_wide(scores[r, k]) * factor + bias[b, k])
            top = _largest(row)
            if top == np.float32(-np.inf):  # every key is masked
                top = np.float32(0)
            total = np.float32(0)
            for k in range(width):
                row[k] = _exp2(np.float32(row[k] - top))
                total = np.float32(total + row[k])
            share = np.float32(0) if total == np.float32(0) else np.float32(np.float32(1) / total)
            place = np.uint32(r * width)
            for k in range(width):
                weight = np.float32(row[k] * share)
                stays = _hashed(place + np.uint32(k), low, high) >= limit
                scores[r, k] = _narrow(weight, scores[r, k])
                dropped[r, k] = _narrow(np.float32(weight * keep if stays else np.float32(0)), scores[r, k])


@parallel(fastmath=_FAST)
def softmax_backward(weights, gradients, scale, dropped, low, high, limit, keep):
    """Turn the gradients of the dropped weights into those of the scores, in place.

    Args:
        weights: `[R, K]`, before dropout.
        gradients: `[R, K]`.
        scale: Factor of the scores.
        dropped: `[R, K]`, which gets the weights after dropout.
        low: First half of the seed.
        high: Second half of the seed.
        limit: The smallest hash of a weight that stays.
        keep: Its factor.
    """
    rows, width = weights.shape
    for part in numba.prange((rows + _ROWS - 1) // _ROWS):
        row = np.empty(width, np.float32)
        for r in range(part * _ROWS, min(rows, (part + 1) * _ROWS)):
            place = np.uint32(r * width)
            mean = np.float32(0)  # of the gradients, by the weights
            for k in range(width):
                stays = _hashed(place + np.uint32(k), low, high) >= limit
                factor = keep if stays else np.float32(0)
                weight = _wide(weights[r, k])
                row[k] = np.float32(_wide(gradients[r, k]) * factor)
                mean = np.float32(mean + weight * row[k])
                dropped[r, k] = _narrow(np.float32(weight * factor), weights[r, k])
            for k in range(width):
                of_score = np.float32(_wide(weights[r, k]) * (row[k] - mean) * scale)
                gradients[r, k] = _narrow(of_score, weights[r, k])
