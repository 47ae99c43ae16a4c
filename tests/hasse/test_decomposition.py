"""Chain decompositions: against the masks that they stand for, and as few chains as can be."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.hasse import MaskSpec, Poset, decomposition, information_flow, masks
from hf_attn_ext.hasse.decomposition import chain_decomposition
from tests.hasse.strategies import masks as any_mask
from tests.hasse.strategies import wide_masks


def check(cover, mask):
    """The cover says the mask, its chains are disjoint, and groups are the classes outside of them."""
    assert torch.equal(cover.dense(), torch.as_tensor(mask))
    inside = np.concatenate([np.empty(0, int), *cover.chains])
    assert len(set(inside.tolist())) == len(inside) and (cover.group[inside] == -1).all()
    assert (np.delete(cover.group, inside) >= 0).all()


@settings(max_examples=60, deadline=None)
@given(mask=st.one_of(any_mask(), wide_masks()))
def test_an_orders_cover_is_the_order_in_as_few_chains_as_can_be(mask):
    poset, flow = Poset.from_mask(mask), information_flow(mask)
    cover = chain_decomposition(poset)
    check(cover, flow)
    seen = np.flatnonzero((flow & ~flow.T).any(0).numpy())  # seen from another class
    assert sorted(np.concatenate([np.empty(0, int), *cover.chains]).tolist()) == seen.tolist()
    width = Poset.from_mask(flow[seen][:, seen]).width() if len(seen) else 0
    assert len(cover.chains) == width


@pytest.mark.parametrize("size", [1, 2, 3, 7, 12])
def test_closed_forms_know_their_chains(size):
    specs = [masks.causal(size), masks.bidirectional(size), masks.butterfly(size)]
    specs += [masks.prefix_lm(size, p) for p in range(1, size + 1)]
    specs += [masks.document([size, 1, 3], causal) for causal in (True, False)]
    for block in range(1, size + 1):
        specs += [masks.block_two_stream(size, block), masks.block_two_stream(size, block, context="block")]
        specs += [masks.block_two_stream(size, block, starts="every"), masks.block_diffusion(size, block)]
    for spec in specs:
        declared = decomposition._declared(spec)
        assert (declared is None) == (spec.name == "butterfly" and size == 1)
        check(chain_decomposition(spec), spec.dense())
        found = chain_decomposition(Poset.from_mask(spec.dense()))
        assert spec.name == "document" or declared is None or len(found.chains) <= len(declared.chains)


@pytest.mark.parametrize("name", masks.list_masks())
def test_every_mask_is_covered_or_refused(name):
    spec = masks.make_mask(name, **masks.mask_entry(name).example)
    if torch.equal(spec.dense(), information_flow(spec)):
        check(chain_decomposition(spec), spec.dense())
    else:
        with pytest.raises(AttnExtError, match="is not dense"):
            chain_decomposition(spec)
        check(chain_decomposition(spec.densify()), information_flow(spec))


@settings(max_examples=40, deadline=None)
@given(mask=any_mask())
def test_a_mask_is_refused_unless_it_is_dense_and_the_pair_named_is_missing(mask):
    spec, flow = MaskSpec.from_mask(mask), information_flow(mask)
    if torch.equal(spec.dense(), flow):
        check(chain_decomposition(spec), flow)
        return
    with pytest.raises(AttnExtError) as caught:
        chain_decomposition(spec)
    message = str(caught.value)
    upper, lower = np.argwhere((flow & ~spec.dense()).numpy())[0].tolist()
    what = "itself" if upper == lower else f"position {lower} (w{lower})"
    assert f"position {upper} (w{upper}) does not attend to {what}" in message and "densify()" in message


def test_a_form_that_says_what_it_is_not_is_read_instead():
    spec = masks.causal(40)

    def bidirectional(q, kv):
        return (q >= 0) & (kv >= 0)

    bidirectional.decompose = spec.form.decompose
    wrong = dataclasses.replace(spec, form=bidirectional)
    check(chain_decomposition(wrong), torch.ones(40, 40, dtype=torch.bool))
    cut = dataclasses.replace(
        masks.butterfly(5),
        **{key: getattr(masks.butterfly(5), key)[:9] for key in ("inputs", "roles", "position_ids", "names")},
        labels={},
    )
    check(chain_decomposition(cut), masks.butterfly(5).dense()[:9, :9])


def test_densify_keeps_the_positions():
    spec = masks.sliding_window(6, 2)
    dense = spec.densify()
    assert torch.equal(dense.dense(), masks.causal(6).dense()) and dense.labels == spec.labels
    assert dense.names == spec.names and torch.equal(dense.position_ids, spec.position_ids) and dense.check()


@pytest.mark.parametrize("causal", [True, False])
def test_a_document_whose_owners_are_others_is_covered_as_it_is(causal):
    """Also where the positions that are not as they were lie between those that are probed."""
    spec = masks.document([50, 46, 1, 3], causal)
    for owner in ([0] * 50 + [1] * 46 + [0] + [2] * 3, [0] * 50 + [-1] * 50):
        changed = dataclasses.replace(spec, tables=(torch.tensor(owner),))
        assert torch.equal(chain_decomposition(changed).dense(), changed.dense())
