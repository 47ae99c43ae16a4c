"""Family of tasks -> minimal joint task -> mask: the same as the closed form, at every size."""

import dataclasses

import pytest
import torch

from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.hasse import MaskSpec, Poset, Task, masks, minimal_joint_task
from hf_attn_ext.hasse.inputs import mask_token, token
from hf_attn_ext.hasse.tasks.family import TaskFamily, derive, groups
from tests.hasse.tasks.families import autoregressive_family, butterfly_family

SIZES = range(1, 25)


def assert_derived(spec):
    derived = derive(spec)
    assert torch.equal(derived.dense(), spec.dense()), spec.title
    assert derived.inputs == spec.inputs, spec.title
    assert derived.labels == dict(spec.labels), spec.title


@pytest.mark.parametrize("n", SIZES)
def test_causal_from_the_autoregressive_family(n):
    assert_derived(masks.causal(n))
    for w in range(2, n + 1):
        assert_derived(masks.sliding_window(n, w))


@pytest.mark.parametrize(("context", "starts"), [("token", "boundary"), ("token", "every"), ("block", "boundary")])
@pytest.mark.parametrize("n", SIZES)
def test_block_two_stream_from_block_generation(n, context, starts):
    for size in range(1, n + 1):  # where size does not divide n, the last block is short
        assert_derived(masks.block_two_stream(n, size, context, starts))


@pytest.mark.parametrize("n", SIZES)
def test_butterfly_from_the_cloze_family(n):
    assert_derived(masks.butterfly(n))
    for window in sorted({1, 2, 3, n // 2, n - 1} - {0, -1}):
        assert_derived(masks.butterfly(n, window=window))


def described(task, kinds):
    """A task's inputs, by a name for each, with what each sees, and its labels."""
    names = [kinds(value) for value in task.inputs]
    seen = {name: {names[j] for j in row.nonzero().flatten()} for name, row in zip(names, task.mask, strict=True)}
    return seen, {names[position]: label for position, label in task.labels.items()}


@pytest.mark.parametrize("n", [1, 2, 3, 7])
def test_families_are_those_stated_apart(n):
    def mine(value):
        return ("mean" if value[0] == "mean" else "token", value[1])

    def theirs(value):
        return ("mean" if value[0] == "mean" else "token", value[1] - 1)

    for spec, other in ((masks.causal(n), autoregressive_family(n)), (masks.butterfly(n), butterfly_family(n))):
        own = spec.task_family().tasks
        assert len(own) == len(other) == n
        for one, two in zip(own, other, strict=True):
            seen, labels = described(two, theirs)
            labels = {name: int(word[1:]) - 1 for name, word in labels.items() if word != f"w{n + 1}"}  # past the end
            assert described(one, mine) == (seen, labels)


@pytest.mark.parametrize("n", [1, 2, 3, 7, 12, 24])
def test_the_others(n):
    generator = torch.Generator().manual_seed(n)
    order = torch.randperm(n, generator=generator).tolist()
    assert_derived(masks.bidirectional(n))
    assert_derived(masks.xlnet_two_stream(order))
    for k in range(n + 1):
        assert_derived(masks.prefix_lm(n, k))
        assert_derived(masks.masked_autoencoder(n, order[:k]))
    for b in range(1, n + 1):
        assert_derived(masks.block_diffusion(n, b))
        lengths = [b] * (n // b) + ([n % b] if n % b else [])
        assert_derived(masks.document(lengths))
        assert_derived(masks.document(lengths, causal=False))


@pytest.mark.parametrize("name", masks.list_masks())
def test_the_joint_task_is_verified_minimal(name):
    entry = masks.mask_entry(name)
    assert minimal_joint_task(entry.make(**entry.example).task_family().tasks).verify()


def test_a_wrong_closed_form_is_found():
    right = masks.butterfly(5)
    leaking = dataclasses.replace(right, form=lambda q, kv: (q - kv).abs() < 4)
    assert not torch.equal(derive(leaking).dense(), leaking.dense())


def test_a_family_that_does_not_fit_its_layout_is_found():
    split, merged, short = TaskFamily(), TaskFamily(), TaskFamily()
    for family, places in ((split, (0, 1)), (merged, (0, 0)), (short, (0, 2))):
        family.add([token(0)], {}, groups([1]), places[:1])
        family.add(
            [token(0), token(1)] if family is not split else [token(0)],
            {},
            groups([1] * 2) if family is not split else groups([1]),
            places if family is not split else places[1:],
        )
    spec = masks.causal(2)
    for family, said in (
        (split, "one node stands for"),
        (merged, "two nodes stand for"),
        (short, "but the mask has positions 0 to 1"),
    ):
        with pytest.raises(AttnExtError, match=said):
            derive(dataclasses.replace(spec, task_family=lambda family=family: family))
    with pytest.raises(AttnExtError, match="no task family"):
        derive(masks.sliding_window(4, 1))


def test_why_the_fourth_variant_leaks():
    """Block context at every start: the tasks are fine, but no single clean stream serves them all."""
    n, size = 4, 2
    family = TaskFamily()
    for start in range(n - size + 1):
        known = [min(size, start - s) for s in range(0, start, size)]
        inputs = [*map(token, range(start)), *map(mask_token, range(start, start + size))]
        labels = {i: i for i in range(start, start + size)}
        family.add(inputs, labels, groups([*known, size]), range(len(inputs)))
    joint = minimal_joint_task(family.tasks)
    # Token 0 stands alone in the task that starts at 1, and in a whole block in that which starts at 2.
    assert joint.inputs.count(token(0)) == 2
    # Forced into one clean stream, a mask block that starts at 1 sees token 0, which sees token 1.
    clean = masks.block_two_stream(n, size, context="block").dense()[:n, :n]
    block = torch.zeros(n + size, n + size, dtype=torch.bool)
    block[:n, :n], block[n:, :1], block[n:, n:] = clean, True, True
    inputs = [*map(token, range(n)), mask_token(1), mask_token(2)]
    forced = MaskSpec.from_mask(block, labels={n: 1, n + 1: 2}, inputs=inputs)
    found = forced.check()[0]
    assert (found.kind, found.position, found.path) == ("target_leak", 4, (4, 0, 1))


def test_sparse_masks_keep_the_diagram():
    assert Poset.from_mask(masks.sliding_window(9, 3)) == Poset.from_mask(masks.causal(9))
    task = Task(range(9), {}, masks.causal(9).dense())
    assert torch.equal(task.sparsify(2, within="full").mask, masks.sliding_window(9, 3).dense())
