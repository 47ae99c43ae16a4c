"""Clean tokens that continue a state and blocks of mask tokens that only read it, against the dense form."""

import pytest
import torch

from hf_attn_ext.attention import causal_attention, make_feature_map, naive_attention, two_stream_attention
from hf_attn_ext.errors import AttnExtError
from tests.attention.kernels import KERNELS, build

from .test_causal import outputs_and_gradients
from .test_forms import inputs

SIZE, WIDTH = 5, 4  # tokens of a block, channels


def passes(starts, count, group):
    """Clean tokens (done, stop) of each pass and row; the first takes all that is before the block."""
    yield [(0, start) for start in starts]
    for number in range(1, count):
        yield [(start + (number - 1) * SIZE, start + number * SIZE) for start in starts]


def padded(rows, length, fill):
    """Rows (H, n, .) of different length as one batch; what fills up must not matter."""
    out = torch.full((len(rows), rows[0].shape[0], length, rows[0].shape[2]), fill, dtype=rows[0].dtype)
    for row, x in enumerate(rows):
        out[row, :, : x.shape[1]] = x
    return out


@pytest.mark.parametrize("group", [1, SIZE])
@pytest.mark.parametrize("kernel", KERNELS)
def test_passes_equal_the_dense_form(kernel, group):
    """Rows with 75, no and 130 clean tokens before the first block, then three more blocks; the last one is short."""
    feature_map, starts = build(kernel, 2, WIDTH), (75, 0, 130)
    text, asked = inputs(3, 2, 160, WIDTH), inputs(3, 2, 4 * SIZE, WIDTH, seed=1)
    state, bytes_of = None, set()
    for number, spans in enumerate(passes(starts, 4, group)):
        widths = [stop - done for done, stop in spans]
        block = torch.ones(3, SIZE, dtype=torch.bool)
        block[0, 3:] = number < 3
        clean = torch.arange(max(widths)) < torch.tensor(widths)[:, None]
        at = slice(number * SIZE, (number + 1) * SIZE)
        tokens = []
        for x, y in zip(text, asked, strict=True):
            rows = [x[row, :, done:stop] for row, (done, stop) in enumerate(spans)]
            tokens.append(torch.cat([padded(rows, max(widths), 3.0), y[:, :, at]], 2))
        before = None if state is None else state.map(torch.clone)
        out, after = two_stream_attention(*tokens, feature_map, state, clean, block, group)
        if state is not None:
            for one, other in zip(vars(state).values(), vars(before).values(), strict=True):
                assert one is other is None or torch.equal(one, other)
        state = after
        assert state.length.tolist() == [stop for _, stop in spans]
        bytes_of.add(state.nbytes)
        for row, (done, stop) in enumerate(spans):
            real = int(block[row].sum())
            ours = [torch.cat([x[row : row + 1, :, :stop], y[row : row + 1, :, at][:, :, :real]], 2)
                    for x, y in zip(text, asked, strict=True)]  # fmt: skip
            index = torch.arange(stop + real)
            seen = index[:, None] // group >= index // group
            seen[:stop, stop:], seen[stop:] = False, True
            expected = naive_attention(*ours, feature_map, mask=seen)[0]
            found = torch.cat([out[row, :, : stop - done], out[row, :, max(widths) : max(widths) + real]], 1)
            torch.testing.assert_close(found, expected[:, done:], rtol=1e-9, atol=1e-10)
    assert len(bytes_of) == 1


@pytest.mark.parametrize("group", [2, 10, 70])
@pytest.mark.parametrize("kernel", KERNELS)
def test_groups_equal_the_dense_form_in_values_and_gradients(kernel, group):
    feature_map = build(kernel, 2, 5)
    tensors = inputs(2, 2, 210 if group == 70 else 150, 5, spread=2.0)
    index = torch.arange(tensors[0].shape[2])
    padding = torch.ones(2, len(index), dtype=torch.bool)
    padding[0, :31], padding[1, 97:] = False, False
    mask = index[:, None] // group >= index // group
    fast = outputs_and_gradients(lambda *x, **o: causal_attention(*x, **o)[0], tensors, feature_map,
                                 key_padding_mask=padding, group=group)  # fmt: skip
    naive = outputs_and_gradients(naive_attention, tensors, feature_map, key_padding_mask=padding, mask=mask)
    for one, other in zip(fast, naive, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("group", [1, SIZE])
@pytest.mark.parametrize("kernel", ["flexformer_p", "performer", "hedgehog"])
def test_large_mask_tokens_hide_no_clean_ones(kernel, group):
    """In float32, and with amplitudes far beyond its range: neither in this block nor in what comes after it."""
    feature_map = build(kernel, 2, WIDTH).float()
    q, k, v = (x.float() for x in inputs(1, 2, 75, WIDTH))
    clean, block = torch.ones(1, 75, dtype=torch.bool).split([70, 5], 1)
    out, state = two_stream_attention(q, k, v, feature_map, None, clean, block, group)
    for first in (70, 74):
        louder = torch.cat([k[:, :, :first], 100 * k[:, :, first:]], 2)
        loud, same = two_stream_attention(q, louder, v, feature_map, None, clean, block, group)
        assert loud.isfinite().all() and torch.equal(loud[:, :, :70], out[:, :, :70])
        assert torch.equal(state.sums, same.sums) and state.sums.dtype == torch.float32
        naive = naive_attention(q[:, :, 70:], louder, v, feature_map)
        torch.testing.assert_close(loud[:, :, 70:], naive, rtol=1e-4, atol=1e-5)


def test_no_text_yet_and_one_dtype_in_another():
    feature_map = make_feature_map("flexformer_p", 2, WIDTH, 3)
    x = torch.randn(2, 2, 3, WIDTH)
    none, block = torch.ones(2, 0, dtype=torch.bool), torch.ones(2, 3, dtype=torch.bool)
    out, state = two_stream_attention(x, x, x, feature_map, None, none, block)
    assert state is None
    torch.testing.assert_close(out, naive_attention(x, x, x, feature_map))
    half = x.bfloat16()
    out, state = two_stream_attention(half, half, half, feature_map, None, block[:, :2], block[:, 2:])
    assert out.dtype == torch.bfloat16 and state.sums.dtype == torch.float32


@pytest.mark.parametrize(
    ("clean", "block", "group", "words"),
    [
        (4, 3, 1, r"clean is \(2, 4\) and block \(2, 3\).*must cover the 6 tokens"),
        (6, 0, 1, "at least one of them in the block"),
        (3, 3, 2, "3 tokens are not a whole number of groups of 2"),
        (3, 3, 0, "groups of 0"),
    ],
)
def test_sizes_that_do_not_fit(clean, block, group, words):
    x = torch.randn(2, 2, 6, WIDTH)
    masks = [torch.ones(2, n, dtype=torch.bool) for n in (clean, block)]
    with pytest.raises(AttnExtError, match=words):
        two_stream_attention(x, x, x, make_feature_map("elu", 2, WIDTH, 3), None, *masks, group)
