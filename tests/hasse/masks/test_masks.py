"""Every mask: its closed form against its definition in words, position ids, labels, block masks, bad arguments."""

import math
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import hf_attn_ext as hax
from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.hasse import MaskSpec, Poset, convergence_depth, information_flow, masks
from hf_attn_ext.hasse.inputs import held_tokens, token
from hf_attn_ext.hasse.registry import _MASKS
from hf_attn_ext.hasse.tasks.family import derive

BLOCKS = [(n, b) for n in (1, 2, 5, 8, 9) for b in range(1, n + 1)]
VARIANTS = [("token", "boundary"), ("token", "every"), ("block", "boundary")]
ALL = [pytest.param(masks.mask_entry(name), id=name) for name in masks.list_masks()]


def matrix(size, sees):
    return torch.tensor([[bool(sees(i, j)) for j in range(size)] for i in range(size)])


def example(entry) -> MaskSpec:
    return entry.make(**entry.example)


@pytest.mark.parametrize("n", [1, 2, 7])
def test_causal_and_bidirectional(n):
    spec = masks.causal(n)
    assert torch.equal(spec.dense(), torch.ones(n, n).tril().bool())
    assert dict(spec.labels) == {i: i + 1 for i in range(n - 1)}
    assert masks.bidirectional(n).dense().all() and not masks.bidirectional(n).labels


@pytest.mark.parametrize("n", [1, 6])
def test_prefix_lm(n):
    for p in range(n + 1):
        spec = masks.prefix_lm(n, p)
        assert torch.equal(spec.dense(), matrix(n, lambda i, j, p=p: j <= i or (i < p and j < p)))
        assert spec.roles.count("prefix") == p
        assert min(spec.labels, default=n - 1) == (max(p - 1, 0) if p < n else n - 1)


@pytest.mark.parametrize("n", [1, 2, 9])
def test_sliding_window(n):
    for w in range(1, n + 1):
        spec = masks.sliding_window(n, w)
        assert torch.equal(spec.dense(), matrix(n, lambda i, j, w=w: i - w < j <= i))
        if w > 1:
            assert convergence_depth(spec) == math.ceil((n - 1) / (w - 1))


@pytest.mark.parametrize("lengths", [[1], [3, 5], [2, 1, 4, 1]])
def test_documents_never_see_each_other(lengths):
    parts = [torch.ones(length, length).bool() for length in lengths]
    assert torch.equal(masks.document(lengths, causal=False).dense(), torch.block_diag(*parts))
    spec = masks.document(lengths)
    assert torch.equal(spec.dense(), torch.block_diag(*[part.tril() for part in parts]))
    assert spec.position_ids.tolist() == [i for length in lengths for i in range(length)]
    assert len(spec.labels) == sum(lengths) - len(lengths)
    assert all(spec.position_ids[label] == spec.position_ids[position] + 1 for position, label in spec.labels.items())


@pytest.mark.parametrize(("n", "b"), BLOCKS)
def test_block_diffusion(n, b):
    spec = masks.block_diffusion(n, b)

    def sees(i, j):
        block, other = i % n // b, j % n // b
        if i < n:
            return block == other if j < n else block > other
        return j >= n and block >= other

    assert torch.equal(spec.dense(), matrix(2 * n, sees))
    assert spec.position_ids.tolist() == [*range(n), *range(n)]
    assert dict(spec.labels) == {i: i for i in range(n)}


def test_the_order_of_block_diffusion():
    poset = Poset.from_mask(masks.block_diffusion(8, 4))
    noisy, clean = (tuple(range(4)), tuple(range(4, 8))), (tuple(range(8, 12)), tuple(range(12, 16)))
    assert set(poset.classes) == {*noisy, *clean}
    named = {(poset.classes[lower], poset.classes[upper]) for lower, upper in poset.covers}
    assert named == {(clean[0], noisy[1]), (clean[0], clean[1])}  # noisy block 1 stands alone


@pytest.mark.parametrize("perm", [[0], [1, 0], [2, 0, 3, 1], [0, 1, 2, 3, 4]])
def test_xlnet(perm):
    n, spec = len(perm), masks.xlnet_two_stream(perm)

    def sees(i, j):
        if j >= n:
            return i == j
        mine, its = perm.index(i % n), perm.index(j)
        return its <= mine if i < n else its < mine

    assert torch.equal(spec.dense(), matrix(2 * n, sees))
    if perm == sorted(perm):
        assert torch.equal(spec.dense(), masks.block_two_stream(n, 1).dense())


def test_masked_autoencoder():
    spec = masks.masked_autoencoder(6, [0, 3])
    assert torch.equal(spec.dense(), matrix(6, lambda i, j: j in (0, 3) or i not in (0, 3)))
    assert dict(spec.labels) == {i: i for i in (1, 2, 4, 5)}
    assert torch.equal(masks.masked_autoencoder(6, 2).dense(), masks.masked_autoencoder(6, [1, 0]).dense())
    assert masks.masked_autoencoder(3, []).dense().all() and masks.masked_autoencoder(3, 3).dense().all()


@pytest.mark.parametrize(("context", "starts"), VARIANTS)
@pytest.mark.parametrize(("n", "size"), BLOCKS)
def test_block_two_stream(n, size, context, starts):
    spec = masks.block_two_stream(n, size, context, starts)
    begins = list(range(n - size + 1)) if starts == "every" else list(range(0, n, size))
    asked = [(begin, i) for begin in begins for i in range(begin, min(begin + size, n))]

    def sees(i, j):
        if i < n:
            return j < n and (j <= i or (context == "block" and j // size == i // size))
        begin, _ = asked[i - n]
        return j < begin if j < n else asked[j - n][0] == begin

    assert len(spec) == n + (len(begins) * size if starts == "every" else n)
    assert torch.equal(spec.dense(), matrix(len(spec), sees))
    assert dict(spec.labels) == {n + k: i for k, (_, i) in enumerate(asked)}
    assert spec.position_ids.tolist() == [*range(n), *(i for _, i in asked)]


@pytest.mark.parametrize(("n", "size"), [(4, 2), (5, 2), (4, 1), (4, 4)])
def test_the_fourth_variant_is_refused_with_its_reason(n, size):
    with pytest.raises(AttnExtError, match="leaks: a clean token of a begun block has seen the rest"):
        masks.block_two_stream(n, size, context="block", starts="every")


@pytest.mark.parametrize("n", range(1, 25))
def test_butterfly(n):
    spec = masks.butterfly(n)
    assert len(spec) == 3 * n - 2
    assert len(spec.labels) == n and set(spec.labels.values()) == set(range(n))  # n labels for n tokens
    forward, backward = range(n - 1), range(n - 1, 2 * n - 2)
    dense = spec.dense()
    assert not dense[: 2 * n - 2, 2 * n - 2 :].any()  # nobody sees a prediction
    for position, k in spec.labels.items():
        assert dense[position].nonzero().flatten().tolist() == sorted(
            {position, *(i for i in forward if i < k), *(j for j in backward if j - (n - 2) > k)}
        )
    for depth in (1, 2, 3, n, None):
        assert reached_tokens(spec, depth) == {k: set(range(n)) - {k} for k in range(n)}


@pytest.mark.parametrize("n", [2, 3, 8, 13])
def test_butterfly_in_a_window(n):
    for c in range(1, n + 2):
        spec = masks.butterfly(n, window=c)
        assert convergence_depth(spec) == math.ceil((n - 1) / c)
        assert Poset.from_mask(spec) == Poset.from_mask(masks.butterfly(n))
        for depth in range(1, 5):
            assert all(k not in tokens for k, tokens in reached_tokens(spec, depth).items())
        assert reached_tokens(spec, None) == {k: set(range(n)) - {k} for k in range(n)}


def reached_tokens(spec, depth):
    """For every label, the tokens whose embeddings have arrived at its prediction after some layers."""
    flow = information_flow(spec, depth)
    return {
        label: {t for p in flow[position].nonzero().flatten().tolist() for t in held_tokens(spec.inputs[p])}
        for position, label in spec.labels.items()
    }


@pytest.mark.parametrize("entry", ALL)
def test_laws_of_every_mask(entry):
    spec = example(entry)
    size, dense = len(spec), spec.dense()
    assert dense.dtype == torch.bool and dense.shape == (size, size) and dense.diagonal().all()
    assert torch.equal(torch.cat([spec.rows(0, 1), spec.rows(1, size - 1), spec.rows(size - 1)]), dense)
    assert torch.equal(torch.from_numpy(spec.bits().dense()), dense)
    assert spec.position_ids.dtype == torch.int64
    assert len(spec.roles) == len(spec.inputs) == len(spec.position_ids) == len(set(spec.names)) == size
    if set(spec.roles) & {"mask", "noisy", "query", "prediction"}:
        assert all(spec.position_ids[position] == label for position, label in spec.labels.items())
    assert not [finding for finding in spec.check() if finding.severity != "note"]
    assert spec.title in repr(spec) and spec.title.startswith(spec.name)


@pytest.mark.parametrize("entry", [entry for entry in ALL if entry.values[0].prefix_stable])
def test_declared_as_stable_is_stable(entry):
    """A mask of fewer tokens, its other options as they are, is the upper left part of a longer one."""
    options = {option: value for option, value in entry.example.items() if option != "n"}
    for n in range(1, 9):
        short = masks.make_mask(
            example(entry).name, n=n, **{option: min(value, n) for option, value in options.items()}
        )
        assert torch.equal(short.dense(), example(entry).dense()[:n, :n])


@pytest.mark.parametrize("entry", ALL)
def test_masks_travel_to_other_processes(entry):
    spec = example(entry)
    again = pickle.loads(pickle.dumps(spec))
    assert torch.equal(again.dense(), spec.dense()) and again.labels == spec.labels and again.title == spec.title
    assert len(again.task_family().tasks) == len(spec.task_family().tasks)


@given(data=st.data(), name=st.sampled_from(masks.list_masks()))
@settings(deadline=None, max_examples=150)
def test_laws_at_any_size(data, name):
    n = data.draw(st.integers(1, 14), "n")
    part = st.integers(1, n)
    options = {
        "prefix_lm": {"p": st.integers(0, n)},
        "sliding_window": {"w": part},
        "document": {"lengths": st.lists(st.integers(1, 5), min_size=1, max_size=4), "causal": st.booleans()},
        "block_diffusion": {"b": part},
        "xlnet_two_stream": {"perm": st.permutations(range(n))},
        "masked_autoencoder": {"visible": st.lists(st.integers(0, n - 1), unique=True)},
        "block_two_stream": {"block_size": part, "context": st.sampled_from(["token", "block"])},
        "butterfly": {"window": st.none() | part},
    }.get(name, {})
    options = {key: data.draw(values, key) for key, values in options.items()}
    spec = masks.make_mask(name, **options, **({} if name in ("document", "xlnet_two_stream") else {"n": n}))
    assert not [finding for finding in spec.check() if finding.severity != "note"]
    assert spec.dense().diagonal().all()
    if spec.window is None and name != "sliding_window":  # dense: one layer lets everything through
        assert torch.equal(information_flow(spec), spec.dense())
    if spec.task_family is not None:
        assert torch.equal(derive(spec).dense(), spec.dense())


@pytest.mark.parametrize("entry", ALL)
@pytest.mark.parametrize("tile", [4, 16])
def test_block_masks_are_those_of_torch(entry, tile):
    spec = example(entry)
    ours = spec.to_block_mask(block_size=tile)
    theirs = create_block_mask(spec.mask_mod, None, None, len(spec), len(spec), device="cpu", BLOCK_SIZE=tile)
    assert torch.equal(ours.to_dense(), theirs.to_dense())
    for name in ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices", "q_num_blocks", "q_indices"):
        assert torch.equal(getattr(ours, name), getattr(theirs, name)), name
    assert ours.seq_lengths == theirs.seq_lengths == (len(spec), len(spec))


@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_flex_attention_sees_what_the_mask_says():
    spec = masks.block_two_stream(6, 4)
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 2, len(spec), 16, dtype=torch.float64).unbind()
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=spec.dense())
    torch.testing.assert_close(flex_attention(q, k, v, block_mask=spec.to_block_mask()), expected)


def test_rows_of_a_long_mask_need_no_square():
    spec = masks.butterfly(100_000)
    rows = spec.rows(299_990, 299_992)
    assert rows.shape == (2, 299_998) and rows.sum().item() == 2 * 100_000


BAD = [
    ("causal", {"n": 0}, "n must be a whole number of at least 1, got 0"),
    ("causal", {"n": 2.0}, "n must be a whole number of at least 1, got 2.0"),
    ("causal", {"n": True}, "n must be a whole number of at least 1, got True"),
    ("prefix_lm", {"n": 3, "p": 4}, "p must be a whole number from 0 to 3, got 4"),
    ("sliding_window", {"n": 3, "w": 0}, "w must be a whole number from 1 to 3, got 0"),
    ("document", {"lengths": []}, "at least one document"),
    ("document", {"lengths": [3, 0]}, r"lengths\[1\] must be a whole number of at least 1, got 0"),
    ("document", {"lengths": "35"}, "lengths must be a list of whole numbers, got '35'"),
    ("document", {"lengths": [1], "causal": 1}, "causal must be True or False, got 1"),
    ("block_diffusion", {"n": 4, "b": 0}, "b must be a whole number from 1 to 4, got 0"),
    ("block_diffusion", {"n": 4, "b": 5}, "b must be a whole number from 1 to 4, got 5"),
    ("block_two_stream", {"n": 4, "block_size": 0}, "block_size must be a whole number from 1 to 4, got 0"),
    ("block_two_stream", {"n": 4, "block_size": 5}, "block_size must be a whole number from 1 to 4, got 5"),
    ("block_two_stream", {"n": 4, "block_size": 2, "context": "tokens"}, "'tokens'. Did you mean 'token'?"),
    ("block_two_stream", {"n": 4, "block_size": 2, "starts": "all"}, "starts must be one of"),
    ("butterfly", {"n": 4, "window": 0}, "window must be a whole number of at least 1, got 0"),
    ("xlnet_two_stream", {"perm": [0, 2]}, r"each of 0 to 1 once, got \[0, 2\]"),
    ("xlnet_two_stream", {"perm": []}, "once, got"),
    ("masked_autoencoder", {"n": 4, "visible": [0, 0]}, r"names a token twice: \[0, 0\]"),
    ("masked_autoencoder", {"n": 4, "visible": [4]}, "from 0 to 3, got 4"),
    ("masked_autoencoder", {"n": 4, "visible": 5}, "from 0 to 4, got 5"),
]


@pytest.mark.parametrize(("name", "options", "said"), BAD)
def test_bad_arguments(name, options, said):
    with pytest.raises(AttnExtError, match=said) as caught:
        masks.make_mask(name, **options)
    assert str(caught.value).startswith(name) and "\n" not in str(caught.value)


def test_names():
    assert hax.list_masks() == masks.list_masks()
    assert {"causal", "butterfly", "block_two_stream"} <= set(masks.list_masks())
    with pytest.raises(AttnExtError, match=r"unknown mask 'buterfly'. Did you mean 'butterfly'?"):
        masks.make_mask("buterfly")
    with pytest.raises(AttnExtError, match="no option 'size'"):
        masks.make_mask("causal", n=3, size=2)
    with pytest.raises(AttnExtError, match=r"needs the option 'w', e.g. 3"):
        masks.make_mask("sliding_window", n=3)


def test_a_mask_of_your_own_in_the_table():
    try:

        @masks.register_mask("strided", example={"n": 6, "step": 2})
        def strided(n, step):
            return MaskSpec(
                name="",
                tokens=n,
                form=lambda q, kv: (kv <= q) & ((q - kv) % step == 0),
                inputs=tuple(map(token, range(n))),
                roles=("token",) * n,
                position_ids=torch.arange(n),
                labels={},
            )

        spec = masks.make_mask("strided", n=4, step=2)
        assert spec.dense().int().tolist() == [[1, 0, 0, 0], [0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 1]]
        assert spec.title == "strided(n=4, step=2)" and "strided" in masks.list_masks()
        with pytest.raises(AttnExtError, match="already registered"):
            masks.register_mask("strided", example={})(lambda: None)
    finally:
        _MASKS.pop("strided", None)


def test_a_spec_from_a_matrix():
    spec = MaskSpec.from_mask([[1, 0], [1, 1]], labels={0: 1})
    assert torch.equal(spec.dense(), masks.causal(2).dense())
    assert spec.tokens == 2 and spec.inputs == (("token", 0), ("token", 1)) and spec.roles == ("token", "token")
    assert torch.equal(
        spec.to_block_mask(block_size=2).to_dense(), masks.causal(2).to_block_mask(block_size=2).to_dense()
    )
    spec = MaskSpec.from_mask(torch.eye(2), inputs=[("mask", 5), "x"], labels={0: 5})
    assert spec.roles == ("mask", "token") and spec.position_ids.tolist() == [5, 1] and spec.tokens == 6


@pytest.mark.parametrize(
    ("mask", "more", "said"),
    [
        ([[1, 0]], {}, "must be square"),
        ([[1, 2], [0, 1]], {}, "Boolean-like"),
        ([[1, float("nan")], [0, 1]], {}, "NaN"),
        (torch.zeros(0, 0), {}, "empty"),
        ([[1]], {"labels": {1: 0}}, "a label is at position 1; the positions are 0 to 0"),
        ([[1]], {"labels": {0: -1}}, "the label at 0 is token -1"),
        ([[1]], {"inputs": [1, 2]}, "2 inputs for 1 positions"),
        ([[1]], {"roles": ["a", "b"]}, "2 roles for 1 positions"),
        ([[1]], {"position_ids": [0, 1]}, "2 position_ids for 1 positions"),
    ],
)
def test_bad_matrices(mask, more, said):
    with pytest.raises(AttnExtError, match=said):
        MaskSpec.from_mask(mask, **more)


def test_rows_and_tiles_that_do_not_exist():
    for start, stop in ((-1, 2), (2, 1), (0, 4)):
        with pytest.raises(AttnExtError, match="must have 0 <= start <= stop <= "):
            masks.causal(3).rows(start, stop)
    with pytest.raises(AttnExtError, match="block_size must be a whole number from 1 to 128, got 0"):
        masks.causal(3).to_block_mask(block_size=0)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"labels": {"0": 1}}, "labels must map positions to tokens"),
        ({"labels": {0: 1.0}}, "labels must map positions to tokens"),
        ({"labels": {True: 1}}, "labels must map positions to tokens"),
        ({"labels": [1]}, "labels must map positions to tokens"),
        ({"labels": {2: 1}}, "a label is at position 2"),
        ({"tokens": "x"}, "tokens must be a whole number"),
        ({"tokens": 0}, "tokens must be a whole number"),
        ({"position_ids": 5}, "position_ids must be whole numbers"),
        ({"position_ids": [[0, 1], [2, 3]]}, "position_ids must be whole numbers"),
        ({"position_ids": torch.zeros(50, 50)}, "position_ids must be whole numbers"),
        ({"position_ids": [0.5, 1]}, "position_ids must be whole numbers"),
        ({"position_ids": ["a", "b"]}, "position_ids must be whole numbers"),
        ({"position_ids": [2**64, 1]}, "position_ids must be whole numbers"),
        ({"position_ids": [1]}, "1 position_ids for 2 positions"),
        ({"inputs": [[1], [2]]}, "the input at position 0 is unhashable"),
        ({"roles": [1, 2]}, "roles and names must be texts"),
    ],
)
def test_bad_parts_of_a_mask_of_ones_own(options, said):
    with pytest.raises(AttnExtError, match=said) as caught:
        MaskSpec.from_mask([[1, 0], [1, 1]], **options)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 200


@pytest.mark.parametrize("huge", [2**24 + 1, 10**11, 10**40])
def test_numbers_that_no_machine_can_list(huge):
    for name in ("causal", "bidirectional", "butterfly"):
        with pytest.raises(AttnExtError, match=f"{name}: n must be at most 16777216"):
            masks.make_mask(name, n=huge)
    for make in (
        lambda: masks.document([3, huge]),
        lambda: masks.xlnet_two_stream([huge]),
        lambda: masks.butterfly(4, huge),
    ):
        with pytest.raises(AttnExtError, match="must be at most 16777216"):
            make()
    with pytest.raises(AttnExtError, match="the sum of lengths must be at most"):
        masks.document([2**23, 2**23, 1])


def test_numbers_that_are_not_whole_where_rows_are_counted():
    spec = masks.causal(4)
    for bad in (0, -1, 1.5):
        with pytest.raises(AttnExtError, match="block_size must be a whole number"):
            spec.to_block_mask(block_size=bad)
    with pytest.raises(AttnExtError, match=r"got start=0.5, stop=4"):
        spec.rows(0.5)
    with pytest.raises(AttnExtError, match=r"visible\[\d\] must be a whole number"):
        masks.masked_autoencoder(3, {0, "a"})
