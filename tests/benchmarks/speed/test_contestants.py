"""Who takes part, how wide, and that each does what its name says."""

from importlib import metadata

import pytest
import torch

from benchmarks.speed.attention import contestants as module
from benchmarks.speed.attention.contestants import (
    BOTH,
    FORWARD,
    PASSES,
    Workload,
    bytes_needed,
    contestants,
    fit_width,
    make_call,
)
from hf_attn_ext.attention import list_kernels, naive_attention
from hf_attn_ext.errors import AttnExtError

WORK = Workload(heads=2, head_dim=8, feature_dim=16)


def by_name(workload=WORK, kernels=None):
    return {contestant.name: contestant for contestant in contestants(workload, kernels)}


def test_everybody_takes_part_in_order_of_families():
    names = [contestant.name for contestant in contestants(WORK)]
    assert names[:3] == ["sdpa", "eager", "performer-pytorch"]
    assert sorted(names[3:]) == list_kernels() and names[-1] == "uniform"
    families = [contestant.family for contestant in contestants(WORK)]
    assert families == sorted(families, key=list(dict.fromkeys(families)).index)


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [("flexformer_p", (64, 128)), ("flexformer_sq", (8, 136)), ("performer", (128, 128)), ("hedgehog", (64, 128))],
)
def test_widths_are_equal_where_one_may_choose(kernel, expected):
    assert fit_width(kernel, 64, 128) == expected
    assert fit_width(kernel, 64, 1)[0] == 1


def test_a_fixed_width_is_said():
    uniform = by_name()["uniform"]
    assert uniform.feature_dim == 1 and "fixed at 1" in uniform.note and by_name()["hedgehog"].note == ""


@pytest.mark.parametrize("causal", [False, True])
def test_eager_is_sdpa(causal):
    *qkv, _ = inputs = WORK.tensors(20)
    everybody = by_name()
    outputs = []
    for name in ("sdpa", "eager"):
        attention = everybody[name].build(WORK, causal)
        make_call(attention, inputs, FORWARD)()  # prepares the mask
        outputs.append(attention(*qkv))
    torch.testing.assert_close(*outputs)


def test_kernels_are_ours_also_where_they_need_the_length():
    work = Workload(heads=2, head_dim=8, feature_dim=16, longest=5000, dtype="float64")
    *qkv, _ = work.tensors(20)
    for name in list_kernels():
        attention = by_name(work)[name].build(work, True)
        expected = naive_attention(*qkv, attention.feature_map, causal=True)
        torch.testing.assert_close(attention(*qkv), expected)
        assert getattr(attention.feature_map, "max_length", 5000) == 5000


@pytest.mark.parametrize("causal", [False, True])
def test_performer_pytorch_runs_and_says_how(causal, capfd):
    package = by_name()["performer-pytorch"]
    assert package.absent is None and "causal_linear_attention_noncuda" in package.note
    assert metadata.version("performer-pytorch") in package.note
    *qkv, _ = WORK.tensors(20)
    first, again = (package.build(WORK, causal)(*qkv) for _ in range(2))
    assert first.shape == qkv[0].shape and torch.equal(first, again)
    assert capfd.readouterr().out == ""


def test_a_missing_package_is_a_row_that_says_so(monkeypatch):
    version = metadata.version

    def missing(name):
        if name == "performer-pytorch":
            raise metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(metadata, "version", missing)
    assert by_name()["performer-pytorch"].absent == (
        "performer-pytorch is not installed: pip install 'hf-attn-ext[bench]'"
    )


def test_a_package_that_cannot_be_imported_says_what_it_lacks(monkeypatch):
    def broken():
        raise ModuleNotFoundError("No module named 'distutils'", name="distutils")

    monkeypatch.setattr(module, "_fast_attention", broken)
    assert by_name()["performer-pytorch"].absent.startswith("distutils is not installed")


@pytest.mark.parametrize("which", PASSES)
def test_calls_leave_the_inputs_alone(which):
    inputs = WORK.tensors(16)
    before = [x.clone() for x in inputs]
    for contestant in contestants(WORK):
        make_call(contestant.build(WORK, True), inputs, which)()
    assert all(
        torch.equal(x, y) and x.grad is None and not x.requires_grad for x, y in zip(inputs, before, strict=True)
    )


def test_only_the_hungry_are_asked_for_their_need():
    everybody = by_name()
    pairs = WORK.heads * 1000**2 * 4
    assert bytes_needed(everybody["eager"], WORK, 1000, False, FORWARD) == 2 * pairs
    assert bytes_needed(everybody["eager"], WORK, 1000, True, BOTH) == 3 * pairs
    sums = 1000 * WORK.heads * 16 * 8 * 4
    assert bytes_needed(everybody["performer-pytorch"], WORK, 1000, True, BOTH) == 4 * sums
    for name, causal, which in (("performer-pytorch", False, BOTH), ("performer-pytorch", True, FORWARD)):
        assert bytes_needed(everybody[name], WORK, 1000, causal, which) is None
    assert all(bytes_needed(everybody[name], WORK, 10**6, True, BOTH) is None for name in ["sdpa", *list_kernels()])


@pytest.mark.parametrize(
    ("kernels", "said"), [(["hedgehg"], "'hedgehog'"), (["elu", "hedgehog", "elu"], "'elu' is named twice")]
)
def test_unknown_and_repeated_kernels(kernels, said):
    with pytest.raises(AttnExtError, match=said):
        contestants(WORK, kernels)
