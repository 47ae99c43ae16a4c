"""What the check finds: leaks with their paths, empty rows, caches, depth, supervision."""

import pytest
import torch

from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.hasse import MaskSpec, information_flow, masks
from hf_attn_ext.hasse.checks import steps
from hf_attn_ext.hasse.inputs import mask_token, token


def of_kind(spec, kind, **options):
    return [finding for finding in spec.check(**options) if finding.kind == kind]


def butterfly_with(n, *pairs):
    """A butterfly with further pairs that may attend."""
    spec = masks.butterfly(n)
    dense = spec.dense()
    for row, column in pairs:
        dense[spec.names.index(row), spec.names.index(column)] = True
    return MaskSpec.from_mask(dense, spec.labels, spec.inputs, spec.roles, spec.position_ids, n, "mine", spec.names)


def test_a_leak_has_a_position_and_a_path():
    leaks = of_kind(butterfly_with(4, ("F0", "B1")), "target_leak")
    # F0 now brings w1, w2, w3 to every prediction that sees F0: to P1, P2, P3.
    assert [leak.position for leak in leaks] == [7, 8, 9]
    assert all(leak.severity == "error" for leak in leaks)
    spec = masks.butterfly(4)
    assert [spec.names[p] for p in leaks[0].path] == ["P1", "F0", "B1"]
    assert "position 7 (P1) must predict token 1, which reaches it in 2 layers: P1 <- F0 <- B1" in str(leaks[0])


def test_predictions_that_see_predictions_leak_through_their_means():
    assert of_kind(masks.butterfly(4), "target_leak") == []
    (leak,) = of_kind(butterfly_with(4, ("P1", "P2")), "target_leak")  # P2's input is the mean of tokens 1 and 3
    assert leak.path == (7, 8)


def test_a_target_that_is_the_input_itself():
    (leak,) = of_kind(MaskSpec.from_mask([[1]], labels={0: 0}), "target_leak")
    assert leak.path == (0,) and "is its own input" in leak.message
    assert of_kind(MaskSpec.from_mask([[1]], labels={0: 0}, inputs=[mask_token(0)]), "target_leak") == []


def test_a_leak_that_the_model_is_too_shallow_for_is_a_warning():
    spec = MaskSpec.from_mask([[1, 1, 0], [0, 1, 1], [0, 0, 1]], labels={0: 2})
    assert [f.severity for f in of_kind(spec, "target_leak", num_layers=1)] == ["warning"]
    assert [f.severity for f in of_kind(spec, "target_leak", num_layers=2)] == ["error"]
    spec.check(num_layers=1, raises=True)
    with pytest.raises(AttnExtError, match=r"fails its check: target leak: position 0 \(w0\).*w0 <- w1 <- w2"):
        spec.check(num_layers=2, raises=True)


@pytest.mark.parametrize("seed", range(20))
def test_leaks_of_random_masks_are_those_of_the_flow(seed):
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(9, 9, generator=generator) < 0.15
    labels = {i: int(t) for i, t in enumerate(torch.randint(9, (9,), generator=generator))}
    leaks = of_kind(MaskSpec.from_mask(mask, labels), "target_leak")
    flow = information_flow(mask)
    assert [leak.position for leak in leaks] == [i for i, t in labels.items() if flow[i, t]]
    for leak in leaks:
        assert leak.path[-1] == labels[leak.position]
        assert all(mask[a, b] for a, b in zip(leak.path, leak.path[1:], strict=False))
        layers = len(leak.path) - 1
        assert information_flow(mask, layers)[leak.position, leak.path[-1]]
        assert layers == 0 or not information_flow(mask, layers - 1)[leak.position, leak.path[-1]]  # a shortest one


def test_many_leaks_are_counted():
    spec = MaskSpec.from_mask(torch.ones(30, 30), labels={i: (i + 1) % 30 for i in range(30)})
    leaks = of_kind(spec, "target_leak")
    assert len(leaks) == 10 and leaks[-1].message.endswith("(and 20 more positions)")


def test_empty_rows():
    (found,) = of_kind(MaskSpec.from_mask([[1, 0], [0, 0]]), "empty_row")
    assert (found.severity, found.position) == ("error", 1) and "position 1 (w1)" in found.message


def test_depth_against_the_models_layers():
    spec = masks.sliding_window(9, 3)
    (found,) = of_kind(spec, "depth", num_layers=3)
    assert found.severity == "warning" and found.value == 4 and "4 layers" in found.message
    assert of_kind(spec, "depth", num_layers=4)[0].severity == of_kind(spec, "depth")[0].severity == "note"
    with pytest.raises(AttnExtError, match="num_layers must be a whole number of at least 1, or None, got 0"):
        spec.check(num_layers=0)


def test_caches():
    assert of_kind(masks.causal(5), "cache")[0].value is True
    assert of_kind(masks.block_two_stream(4, 1), "cache")[0].value is True
    (found,) = of_kind(masks.prefix_lm(5, 3), "cache")
    assert (found.value, found.position) == (False, 0) and "sees the later 2 (w2)" in found.message
    assert steps(masks.causal(3)) == [1, 1, 1]
    assert steps(masks.bidirectional(3)) == [3]
    assert steps(masks.prefix_lm(5, 3)) == [3, 1, 1]
    assert steps(masks.block_two_stream(4, 2, context="block")) == [2, 2, 2, 2]


@pytest.mark.parametrize(
    ("spec", "density"),
    [
        (masks.butterfly(7), 1.0),
        (masks.block_two_stream(7, 3), 1.0),
        (masks.causal(8), 7 / 8),
        (masks.bidirectional(4), 0.0),
        (masks.block_two_stream(4, 2, starts="every"), 6 / 4),
    ],
)
def test_supervision(spec, density):
    assert of_kind(spec, "supervision")[0].value == density


def test_errors_come_first_and_findings_are_lines():
    findings = MaskSpec.from_mask([[0, 0], [1, 1]], labels={1: 0}).check(num_layers=1)
    assert [f.severity for f in findings][:2] == ["error", "error"]
    assert {f.kind for f in findings} == {"target_leak", "empty_row", "depth", "cache", "supervision"}
    assert all("\n" not in str(f) and str(f).startswith(f.severity) for f in findings)
    assert all(isinstance(f.position, int) for f in findings if f.severity == "error")


def test_labels_of_the_same_token_at_other_positions():
    spec = MaskSpec.from_mask(torch.eye(3), labels={1: 0}, inputs=[token(0), mask_token(0), token(1)])
    assert of_kind(spec, "target_leak") == []


def test_inputs_of_which_nobody_knows_what_they_hold_are_not_passed_in_silence():
    mask = torch.tensor([[1, 1, 0], [0, 1, 0], [0, 0, 1]]).bool()
    for unknown in ("b", ("word", 1), ("token", -1), ("token", True), 1):
        spec = MaskSpec.from_mask(mask, labels={0: 1, 2: 1}, inputs=[mask_token(0), unknown, mask_token(2)])
        (finding,) = of_kind(spec, "target_leak")
        assert finding.severity == "warning" and finding.position == 0  # 2 is not reached
        assert "cannot be ruled out" in finding.message and repr(unknown) in finding.message
        assert "1 of 2 predictions" in finding.message and "at 1, which reaches m0 at 0" in finding.message
    assert not of_kind(MaskSpec.from_mask(mask, inputs=["a", "b", "c"]), "target_leak")  # nothing to predict
    spec = MaskSpec.from_mask(mask, labels={0: 1}, inputs=[mask_token(0), "b", "c"])
    for order in ([2, 0, 1], [1, 2, 0]):  # "c" is unknown too, and reaches nothing
        moved = MaskSpec.from_mask(mask[order][:, order], {order.index(0): 1}, [spec.inputs[p] for p in order])
        (finding,) = of_kind(moved, "target_leak")
        assert "'b'" in finding.message and "'c'" not in finding.message


@pytest.mark.parametrize("layers", [0, -1, 1.5, "x", True])
def test_bad_numbers_of_layers(layers):
    with pytest.raises(AttnExtError, match="num_layers must be a whole number of at least 1"):
        MaskSpec.from_mask([[1]]).check(num_layers=layers)
