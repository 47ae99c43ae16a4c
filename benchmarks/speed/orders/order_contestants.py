"""Who takes part in ``bench order``: a kernel of ours over a mask's order, and sdpa with the dense mask."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.speed.attention.contestants import BOTH, Linear, Workload, fit_width, make_call
from hf_attn_ext.attention import linear_attention
from hf_attn_ext.attention.ops.order.plan import plan_of
from hf_attn_ext.errors import AttnExtError, suggest
from hf_attn_ext.hasse import MaskSpec, masks

OURS, SDPA = "order", "sdpa"
NAMES = ("causal", "block_two_stream", "butterfly")
_WARM_UP = 64  # positions


def make_order(name: str, positions: int, block_size: int) -> MaskSpec:
    """The mask of a name that has as many positions as it can, up to ``positions``, which must be at least 4.

    Raises:
        AttnExtError: an unknown name.
    """
    if name == "causal":
        return masks.causal(positions)
    if name == "block_two_stream":
        return masks.block_two_stream(positions // 2, min(block_size, positions // 2))
    if name == "butterfly":
        return masks.butterfly((positions + 2) // 3)
    raise AttnExtError(f"unknown mask {name!r}.{suggest(name, NAMES)} Masks: {', '.join(NAMES)}")


class Ordered(Linear):
    """A kernel of ours over an order that is prepared already."""

    def __init__(self, kernel: str, workload: Workload, spec: MaskSpec) -> None:
        num_features, _ = fit_width(kernel, workload.head_dim, workload.feature_dim)
        super().__init__(kernel, num_features, workload, causal=False, compiled=False)
        self.spec = spec
        plan_of(spec)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return linear attention over the order, (B, H, N, d)."""
        return linear_attention(q, k, v, self.feature_map, order=self.spec)


class MaskedSdpa(nn.Module):
    """torch's fused attention with a dense bool mask that exists already."""

    def __init__(self, spec: MaskSpec) -> None:
        super().__init__()
        self.register_buffer("mask", spec.dense()[None, None])

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return fused attention with the dense mask, (B, H, N, d)."""
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=self.mask)


@dataclasses.dataclass(frozen=True)
class OrderCase:
    """One call that is measured: forward and backward of one layer.

    Attributes:
        who: "order" or "sdpa".
        mask, positions, block_size: as :func:`make_order` takes them.
        kernel: of "order".
        workload: sizes, dtype, device.
    """

    who: str
    mask: str
    positions: int
    block_size: int
    kernel: str
    workload: Workload

    def call(self) -> Callable[[], None]:
        """Make mask, plan, inputs and kernel; return the call."""
        spec = make_order(self.mask, self.positions, self.block_size)
        attention = Ordered(self.kernel, self.workload, spec) if self.who == OURS else MaskedSdpa(spec)
        return make_call(attention.to(self.workload.device), self.workload.tensors(len(spec)), BOTH)

    def measured_call(self) -> Callable[[], None]:
        """The call, after a small one has set everything up."""
        dataclasses.replace(self, positions=min(_WARM_UP, self.positions)).call()()
        return self.call()

    def as_request(self) -> dict[str, Any]:
        """What the server of :mod:`.peak_server` is asked."""
        return {"what": "case", "case": dataclasses.asdict(self), "threads": torch.get_num_threads()}

    @classmethod
    def from_request(cls, request: dict[str, Any]) -> OrderCase:
        """Read what :meth:`as_request` wrote."""
        case = request["case"]
        return cls(**{**case, "workload": Workload(**case["workload"])})
