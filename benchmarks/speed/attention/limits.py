"""The machine's own limit: how fast it multiplies matrices and computes exponentials and cosines, as measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from benchmarks.speed.measuring.timing import measure

from .contestants import DTYPES
from .operations import Operations

_BUDGET = 0.3  # seconds a size


@dataclasses.dataclass(frozen=True)
class Rates:
    """A second, on all threads of this process. The best of several sizes and calls: a limit, not an average.

    Attributes:
        products: floating-point operations in matrix products.
        exponentials, cosines: numbers.
    """

    products: float
    exponentials: float
    cosines: float

    def seconds(self, operations: Operations) -> float:
        """The least time for ``operations``, one kind after the other."""
        return (
            operations.products / self.products
            + operations.exponentials / self.exponentials
            + operations.cosines / self.cosines
        )

    def best(self, other: Rates) -> Rates:
        """The higher of each rate: what the machine can do when less disturbed."""
        return Rates(*map(max, dataclasses.astuple(self), dataclasses.astuple(other)))


def measure_rates(device: str, dtype: str, synchronize: Callable[[], None] | None = None, quick: bool = False) -> Rates:
    """Measure square matrix products, and functions of blocks that fit a cache, in place.

    Args:
        device, dtype: as in the workload; float32 products run at torch's own setting of precision. For half precision
            the better of it and float32 counts: kernels compute in float32, and a CPU may be slow at less.
        synchronize: waits for the device.
        quick: one small size each, for tests.
    """
    on_cpu = device == "cpu"
    sides = (64,) if quick else (256, 512, 1024, 2048) if on_cpu else (2048, 4096, 8192)
    counts = (2**12,) if quick else (2**16, 2**18, 2**20) if on_cpu else (2**22, 2**26)
    repeats = 2 if quick else 30
    dtypes = {torch.promote_types(DTYPES[dtype], torch.float32), DTYPES[dtype]}

    def best(prepare: Callable[[int, dict[str, Any]], tuple[Callable[[], object], int]], sizes: Sequence[int]) -> float:
        rates = []
        for kind in dtypes:
            for size in sizes:
                call, work = prepare(size, {"device": device, "dtype": kind})
                timing = measure({"it": call}, repeats, _BUDGET, synchronize)[0]["it"]
                rates.append(work / min(timing.seconds))
                if timing.median > _BUDGET:
                    break  # larger sizes would take longer still
        return max(rates)

    return Rates(
        best(_product, sides),
        best(partial(_pointwise, torch.exp), counts),
        best(partial(_pointwise, torch.cos), counts),
    )


def _product(side: int, options: dict[str, Any]) -> tuple[Callable[[], object], int]:
    a, b = torch.randn(2, side, side, **options).unbind()
    return partial(torch.mm, a, b, out=torch.empty_like(a)), 2 * side**3


def _pointwise(function: Callable, count: int, options: dict[str, Any]) -> tuple[Callable[[], object], int]:
    x = torch.randn(count, **options)
    return partial(function, x, out=torch.empty_like(x)), count
