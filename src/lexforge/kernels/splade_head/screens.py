"""Products of float32 vectors in bfloat16 or in whole numbers of 8 bits, and how far they can be off.

Let h be a token and w a term, h' and w' what is left of them in the narrow format, r_h = h - h' and
r_w = w - w' the rests, whose lengths are measured. Then

    h.w = h'.w' + h.r_w + r_h.w'

and by Cauchy-Schwarz the narrow product p differs from h.w, and from its float32 sum, by at most

    |p - h.w| <= E = |h| |r_w| + |r_h| |w'| + s |h| |w| + u |p|,    |w'| <= |w| + |r_w|

- In bfloat16 a number keeps 8 bits: a rest is at most 2^-8 of its vector, about half of that in practice.
  The products are summed in float32 and the sum is rounded to bfloat16, so u = 2^-8.
- In 8 bits, h' = c a with whole numbers a from -127 to 127 and c = (largest number of the row's tokens) /
  127; each term has a scale of its own in the same way. The sum of whole numbers is exact, so u = 0, but
  the rests are about twice as long, and longer where a few numbers of a vector are much larger than the
  others.
- s covers the float32 sums, of the screen and of the product that decides, and the rounding of rests and
  scales: D 2^-23 + 2^-20.

A processor without instructions for such sums (VNNI, i8mm) makes one factor unsigned and adds pairs of
products in 16 bits, which saturate: no bound holds then. `is_exact` multiplies the largest numbers, once
per process, to see it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

_AT_ONCE = 2**19  # numbers that are narrowed at a time, so that copies stay in the cache
_FLUSHED = 1e-17  # added to lengths, for subnormal numbers, which narrow units take as 0
_SMALLEST_SCALE = 1e-12  # of whole numbers, so that a product of two scales is a normal number


class Narrow(NamedTuple):
    """Vectors in the narrow format, in k sets of c vectors that share a scale and their bounds."""

    values: Tensor  # [k * c, D]
    scale: Tensor  # [k] float32, what a value of 1 stands for
    length: Tensor  # [k], of the longest vector of a set
    rest: Tensor  # [k], of the longest rest of a set


class Screen(ABC):
    """A narrow format, its product and the rounding of its result."""

    name: str
    values: torch.dtype
    products: torch.dtype
    unit: float  # u above

    def narrow(self, vectors: Tensor) -> Narrow:
        """Round float32 `[k, c, D]`, k sets of c vectors."""
        sets, size, width = vectors.shape
        values = torch.empty(vectors.shape, dtype=self.values)
        scale, rest = vectors.new_ones(sets), vectors.new_empty(sets, size)
        at_once = max(1, _AT_ONCE // max(1, size * width))
        for first in range(0, sets, at_once):
            block = slice(first, first + at_once)
            self._round(vectors[block], values[block], scale[block], rest[block])
        length = torch.linalg.vector_norm(vectors, dim=2).amax(1) + _FLUSHED
        return Narrow(values.flatten(0, 1), scale, length, rest.amax(1) + _FLUSHED)

    @abstractmethod
    def _round(self, vectors: Tensor, values: Tensor, scale: Tensor, rest: Tensor) -> None:
        """Write what is left of `[k, c, D]` into `values`, the rests' lengths into `rest [k, c]`, and a scale
        `[k]` other than 1 into `scale`.
        """

    @abstractmethod
    def multiply(self, terms: Tensor, tokens: Tensor, out: Tensor) -> None:
        """Write the products of `[n, D]` and `[m, D]` into `out [n, m]` of the dtype `products`."""

    @abstractmethod
    def largest(self, products: Tensor) -> Tensor:
        """The largest products `[n, m]` of `[n, m, L]`."""


class BFloat16Screen(Screen):
    """bfloat16 factors, float32 sums, bfloat16 results."""

    name = "bfloat16"
    values = torch.bfloat16
    products = torch.bfloat16
    unit = 2.0**-8

    def _round(self, vectors: Tensor, values: Tensor, scale: Tensor, rest: Tensor) -> None:
        values.copy_(vectors)
        torch.linalg.vector_norm(vectors - values, dim=2, out=rest)

    def multiply(self, terms: Tensor, tokens: Tensor, out: Tensor) -> None:
        """As in `Screen`."""
        torch.mm(terms, tokens.t(), out=out)

    def largest(self, products: Tensor) -> Tensor:
        """`products.amax(2)` of finite numbers, three times as fast.

        Read as integers, floats of one sign are in order, the negative ones in descending order.
        """
        bits = products.view(torch.int16)
        high = bits.amax(2)
        return torch.where(high >= 0, high, bits.amin(2)).view(torch.bfloat16)


class Int8Screen(Screen):
    """Whole numbers of 8 bits, exact sums of 32 bits."""

    name = "int8"
    values = torch.int8
    products = torch.int32
    unit = 0.0

    def _round(self, vectors: Tensor, values: Tensor, scale: Tensor, rest: Tensor) -> None:
        largest = torch.maximum(vectors.amax((1, 2)), -vectors.amin((1, 2)))  # ten times as fast as a norm
        torch.clamp(largest / 127, min=_SMALLEST_SCALE, out=scale)
        scaled = vectors / scale.view(-1, 1, 1)
        values.copy_(whole := scaled.round())
        torch.linalg.vector_norm(scaled.sub_(whole), dim=2, out=rest)
        rest.mul_(scale.unsqueeze(1))

    def multiply(self, terms: Tensor, tokens: Tensor, out: Tensor) -> None:
        """As in `Screen`."""
        torch._int_mm(terms, tokens.t(), out=out)

    def largest(self, products: Tensor) -> Tensor:
        """As in `Screen`."""
        return products.amax(2)


SCREENS: dict[str, Screen] = {screen.name: screen for screen in (BFloat16Screen(), Int8Screen())}


@cache
def is_exact(screen: Screen, width: int) -> bool:
    """Whether this processor sums the narrow products of `[.., width]` vectors as the bound needs it.

    Measured once per process and not read from a flag or a file: a cached choice may come from another
    processor of the same name, and oneDNN can be told to use older instructions.

    Args:
        screen: The format.
        width: D, at least 1.

    Returns:
        False if a sum of the largest numbers of the format is off by more than float32 sums may be.
    """
    if screen.products == torch.int32 and width > 2**31 // 127**2:
        return False
    terms = torch.full((128, width), 127.0)
    terms[1::2, ::2] = -127.0
    tokens = torch.full((48, width), 127.0)
    tokens[::3] = -127.0
    factors = [screen.narrow(each.unsqueeze(1)).values for each in (terms, tokens)]
    products = torch.empty(128, 48, dtype=screen.products)
    screen.multiply(factors[0], factors[1], products)
    exact = terms.double() @ tokens.double().t()
    # Of a length |h| |w| = 127^2 D each: the result's own rounding, and the sum's.
    allowed = screen.unit * exact.abs() + (width * 2.0**-23 if screen.unit else 0.0) * 127.0**2 * width
    return bool(((products.double() - exact).abs() <= allowed).all())
