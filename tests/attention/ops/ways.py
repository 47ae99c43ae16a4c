"""The ways linear attention over an order is computed, and what comes out of one."""

from __future__ import annotations

from unittest import mock

import torch

from hf_attn_ext.attention.ops import inputs as form_inputs
from hf_attn_ext.attention.ops.order import order_attention as partial_order

WAYS = ("tiles", "small blocks", "batched")


def taking(way):
    """The ways the sums are computed; on a CPU the last is only taken where amplitudes lie far apart."""
    if way == "batched":
        return mock.patch.object(partial_order, "_one_scale", return_value=False)
    return mock.patch.object(form_inputs, "CPU_BLOCK", 1 if way == "small blocks" else form_inputs.CPU_BLOCK)


def results(form, tensors, feature_map, **options):
    """Outputs, and gradients of q, k, v and of the map's parameters."""
    tensors = [x.detach().requires_grad_() for x in tensors]
    out = form(*tensors, feature_map, **options)
    wanted = [*tensors, *feature_map.parameters()]
    loss = (out * out.detach().cos()).sum()
    return out, *torch.autograd.grad(loss, wanted, allow_unused=True, materialize_grads=True)
