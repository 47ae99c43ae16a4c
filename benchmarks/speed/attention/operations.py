"""How many operations a contestant needs, by formula; for kernels without one, counted while it runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .contestants import BOTH, FORWARD, SOFTMAX, Contestant, Workload, make_call

CHUNK = 64  # tokens treated densely by the causal form, see attention/ops/causal.py
# Keys that the native op multiplies densely with a query: of chunks of 32, those up to the query's vector of 16.
COMPILED_CHUNK = 24


@dataclasses.dataclass(frozen=True)
class Operations:
    """How often what is done.

    Attributes:
        products: floating-point operations in matrix products, two a multiplication with its addition.
        exponentials: and logarithms, of single numbers; a power of one number to another is two.
        cosines: and sines, of single numbers.
    """

    products: float = 0.0
    exponentials: float = 0.0
    cosines: float = 0.0

    def __add__(self, other: Operations) -> Operations:
        return Operations(*(a + b for a, b in zip(self.values(), other.values(), strict=True)))

    def __mul__(self, factor: float) -> Operations:
        return Operations(*(factor * a for a in self.values()))

    def values(self) -> tuple[float, float, float]:
        """Return products, exponentials and cosines."""
        return self.products, self.exponentials, self.cosines


@dataclasses.dataclass(frozen=True)
class MapCost:
    """What a feature map needs for one token and head, forward.

    Attributes:
        query, key: operations in matrix products.
        exponentials, cosines: for a query, and again for a key.
        amplitude: exponentials more for a key's amplitude.
        bound: width M of the bounds of a signed kernel, 0 without.
        learned: whether the weights of the projections get gradients.
    """

    query: float
    key: float
    exponentials: float = 0.0
    cosines: float = 0.0
    amplitude: float = 0.0
    bound: int = 0
    learned: bool = True


# d: head_dim, n: num_features. Costs that don't grow with the length (folding matrices) are left out.
MAPS: dict[str, Callable[[int, int], MapCost]] = {
    "flexformer_s": lambda d, n: MapCost(2 * d * n, 2 * d * n, cosines=2 * n, amplitude=1, bound=1),
    "flexformer_n": lambda d, n: MapCost(4 * d * n, 4 * d * n, cosines=3 * n, amplitude=1, bound=1),
    "flexformer_p": lambda d, n: MapCost(4 * d * n, 4 * d * n + 2 * d * d, exponentials=2 * n, amplitude=2),
    "flexformer_sq": lambda d, n: MapCost(2 * d * (d + n), 2 * d * (d + n), cosines=2 * n, amplitude=1, bound=1),
    "hedgehog": lambda d, n: MapCost(2 * d * n, 2 * d * n, exponentials=2 * n),
    "performer": lambda d, n: MapCost(2 * d * n, 2 * d * n, exponentials=n, amplitude=1, learned=False),
    "rfa": lambda d, n: MapCost(2 * d * n, 2 * d * n, cosines=2 * n, bound=1),
    "elu": lambda d, n: MapCost(0, 0, exponentials=d),
}


def operations(contestant: Contestant, workload: Workload, length: int, causal: bool, which: str) -> Operations:
    """Return what one call needs, over all heads.

    Args:
        which: "forward" or "forward+backward".

    The kernels' counts are those of the forms for CPUs; the forms for GPUs do a little more. Elementwise work other
    than exponentials and cosines is not counted.
    """
    rows = workload.batch * workload.heads * length
    if contestant.family == SOFTMAX:
        return softmax_cost(contestant.name, workload.head_dim, length, causal, which) * rows
    if contestant.kernel not in MAPS:
        return counted(contestant, workload, length, causal, which)
    cost = MAPS[contestant.kernel](workload.head_dim, contestant.num_features)
    form = compiled_cost if contestant.compiled else kernel_cost
    return form(cost, contestant.feature_dim, workload.head_dim, causal, which) * rows


def softmax_cost(name: str, d: int, length: int, causal: bool, which: str) -> Operations:
    """For one query and head. sdpa skips what a causal query does not see; backward, it computes its weights again."""
    fused = name == "sdpa"
    keys = (length + 1) / 2 if causal and fused else length
    forward = Operations(4 * d * keys, keys)
    if which == FORWARD:
        return forward
    return forward + (Operations(10 * d * keys, keys) if fused else Operations(8 * d * keys))


def kernel_cost(cost: MapCost, width: int, d: int, causal: bool, which: str) -> Operations:
    """For one query, one key and one head, in the linear-time forms.

    Args:
        width: feature_dim F.
    """
    projections = cost.query + cost.key
    ours = Operations(projections, 2 * cost.exponentials + cost.amplitude, 2 * cost.cosines)
    if which == BOTH:
        # gradients of a product's two factors (or the input alone); a cosine's is a sine, an exponential's is kept
        ours = ours + Operations(projections * (1 + cost.learned), 0.0, 2 * cost.cosines)
    return ours + _sums(width, d + 1, causal, which) + _bounds(cost.bound, causal, which)


def compiled_cost(cost: MapCost, width: int, d: int, causal: bool, which: str) -> Operations:
    """As :func:`kernel_cost`, in the native op (attention/native), for maps without bounds.

    Backward, it computes the features again, but not the keys' norms. In causal attention, every pair of query and key
    in a chunk has an exponential; else only queries and keys have.
    """
    dense = COMPILED_CHUNK if causal else 0
    projections = cost.query + cost.key
    features = 2 * cost.exponentials + 1
    ours = Operations(projections, features + 2 + dense)
    if which == BOTH:
        ours = ours + Operations(2 * projections + projections - 2 * d * d, features + 2 + 2 * dense)
    return ours + _sums(width, d + 1, causal, which, COMPILED_CHUNK)


def _sums(f: int, v: int, causal: bool, which: str, chunk: int = CHUNK) -> Operations:
    """Numerator and denominator: F features, d + 1 values (the last is 1)."""
    if causal:
        # dense inside a chunk of C, and reading and adding to the running sum; backward see ops/causal_product.py
        forward = 2 * (chunk * (f + v) + 2 * f * v)
        backward = 2 * (chunk * (3 * f + 2 * v) + 5 * f * v)
    else:
        forward = 2 * 2 * f * v  # keys into the sum, queries from it
        backward = 2 * forward
    return Operations(forward + (backward if which == BOTH else 0))


def _bounds(m: int, causal: bool, which: str) -> Operations:
    """Operations of the normaliser's floor: sums over M bounds and the value 1; without an order, keys are added."""
    if not m:
        return Operations()
    if causal:
        return _sums(m, 1, causal, which)
    return Operations(2 * m * (2 if which == BOTH else 1))


def counted(contestant: Contestant, workload: Workload, length: int, causal: bool, which: str) -> Operations:
    """Count at two short lengths while it runs, and extend the line to ``length``: for linear contestants."""
    few, more = 2 * CHUNK, 4 * CHUNK
    small = dataclasses.replace(workload, batch=1, heads=1, device="cpu", dtype="float32", longest=more)
    attention = contestant.build(small, causal)

    def count(tokens: int) -> Operations:
        call = make_call(attention, small.tensors(tokens), which)
        with Counter() as counter:
            call()
        return counter.total

    a_token = (count(more) + count(few) * -1) * (1 / (more - few))
    return a_token * (workload.batch * workload.heads * length)


class Counter(TorchDispatchMode):
    """Counts what torch is asked for inside a ``with``; see ``total``."""

    def __init__(self) -> None:
        super().__init__()
        self.total = Operations()

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        result = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__.rstrip("_")
        if name in ("mm", "bmm", "addmm", "baddbmm"):
            left = args[0] if name in ("mm", "bmm") else args[1]
            self.total += Operations(products=2 * result.numel() * left.shape[-1])
        elif name in ("exp", "log", "_softmax"):
            self.total += Operations(exponentials=result.numel())
        elif name == "pow" and torch.is_tensor(args[1]):
            self.total += Operations(exponentials=2 * result.numel())
        elif name in ("cos", "sin"):
            self.total += Operations(cosines=result.numel())
        return result
