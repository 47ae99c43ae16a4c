"""How an order is prepared: tiles, what is remembered, and that nothing ever grows faster than the positions."""

import dataclasses
import gc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hf_attn_ext.attention import linear_attention, make_feature_map, naive_attention
from hf_attn_ext.attention.ops.order import plan as order_plan
from hf_attn_ext.attention.ops.order.plan import CHUNK, make_plan, plan_of
from hf_attn_ext.hasse import MaskSpec, Poset, chain_decomposition, masks

from .ways import WAYS, results, taking


class Largest(TorchDispatchMode):
    """The number of elements of the largest tensor that anything returns."""

    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        result = function(*arguments, **(options or {}))
        found = (x.numel() for x in tree_leaves(result) if isinstance(x, torch.Tensor))
        self.elements = max(self.elements, *found, 0)
        return result


def scattered(n):
    """Four chains under other names."""
    order = np.random.default_rng(0).permutation(n)
    mask = np.tri(n, dtype=bool) & (np.arange(n)[:, None] % 4 == np.arange(n) % 4)
    return Poset.from_mask(mask[np.ix_(order, order)])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "make",
    [
        masks.causal,
        masks.bidirectional,
        lambda n: masks.block_two_stream(n // 2, 8),
        lambda n: masks.butterfly((n + 2) // 3),
        scattered,
    ],
    ids=["causal", "bidirectional", "block_two_stream", "butterfly", "scattered"],
)
def test_no_tensor_grows_faster_than_the_positions(make, way):
    """Neither pairs of positions nor a running sum a position: N x N, or N x features x values."""
    found, width = [], 64
    for length in (512, 1024):
        order = make(length)
        feature_map, positions = make_feature_map("hedgehog", 1, width, width // 2), plan_of(order).size
        tensors = torch.randn(3, 1, 1, positions, width)
        with Largest() as largest, taking(way):
            results(linear_attention, tensors, feature_map, order=order)
        found.append(largest.elements)
    assert found[1] <= 2.2 * found[0] and found[1] < 1024 * min(1024, width * width) / 2


def test_preparing_a_closed_form_looks_at_a_few_rows():
    for spec in (masks.causal(4096), masks.block_two_stream(2048, 16), masks.butterfly(1366)):
        looked = 0

        def form(q, kv, *tables, spec=spec):
            nonlocal looked
            looked += torch.broadcast_tensors(q, kv)[0].numel()
            return spec.form(q, kv, *tables)

        whole = spec.form.func if hasattr(spec.form, "func") else spec.form
        form.decompose = lambda size, *tables, spec=spec, whole=whole: whole.decompose(
            size, *getattr(spec.form, "args", ()), *tables
        )
        plan = make_plan(chain_decomposition(dataclasses.replace(spec, form=form)))
        assert 0 < looked <= 32 * len(spec) and not plan.scattered and len(plan.masks) <= 8


def test_plans_are_made_once_and_go_with_their_order():
    poset = Poset.from_mask(np.tri(5, dtype=bool))
    assert plan_of(poset) is plan_of(poset)
    assert plan_of(masks.butterfly(7)) is plan_of(masks.butterfly(7)) is not plan_of(masks.butterfly(8))
    spec = MaskSpec.from_mask(np.tri(5, dtype=bool))
    assert plan_of(spec) is plan_of(spec) is not plan_of(MaskSpec.from_mask(np.tri(5, dtype=bool)))
    before = len(order_plan._by_object)
    del poset, spec
    gc.collect()
    assert len(order_plan._by_object) < before
    for n in range(2, 2 + 2 * order_plan._KEPT):
        plan_of(masks.butterfly(n))
    assert len(order_plan._by_form) <= order_plan._KEPT


def test_tiles_are_runs_wherever_the_order_has_them():
    plan = plan_of(masks.block_two_stream(4 * CHUNK, 8))
    own, chain = [tile for tile in plan.tiles if not tile.carries], [tile for tile in plan.tiles if tile.carries]
    assert all(isinstance(tile.keys, slice) and tile.keys.stop - tile.keys.start == CHUNK for tile in plan.tiles)
    assert len(own) in (4, 5) and len(chain) in (3, 4) and not plan.alone
    plan = plan_of(masks.butterfly(100))
    assert plan.alone == (slice(198, 298),) and len(plan.tiles) == 4


@pytest.mark.parametrize("inference", [False, True])
def test_a_table_that_is_written_to_is_read_again(inference):
    """Else one document would see another's tokens."""
    with torch.inference_mode(inference):
        spec, other = masks.document([4, 5]), masks.document([6, 3])
        before = plan_of(spec)
        assert plan_of(spec) is before
        spec.tables[0].copy_(other.tables[0])
        after = plan_of(spec)
        assert after is not before and plan_of(spec) is after
    feature_map = make_feature_map("hedgehog", 2, 4, 5)
    q, k, v = torch.randn(3, 1, 2, 9, 4).unbind()
    torch.testing.assert_close(
        linear_attention(q, k, v, feature_map, order=spec), naive_attention(q, k, v, feature_map, mask=spec.dense())
    )


def test_plans_are_asked_for_by_many_threads():
    with ThreadPoolExecutor(8) as pool:
        plans = list(pool.map(lambda n: plan_of(masks.causal(1 + n % 50)), range(400)))
    assert all(plan.size == 1 + n % 50 for n, plan in enumerate(plans))
