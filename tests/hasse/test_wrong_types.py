"""Every function that users call, given one wrong thing after another: it works, or says in one line what is wrong."""

import numpy as np
import pytest
import torch

from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.hasse import (
    BitMatrix,
    JointTask,
    MaskSpec,
    Poset,
    Task,
    convergence_depth,
    information_flow,
    masks,
    minimal_joint_task,
)
from hf_attn_ext.hasse.drawing.draw import draw, figure
from hf_attn_ext.hasse.files.read import read_mask_file, read_tasks_file
from hf_attn_ext.hasse.files.write import write_mask_file
from hf_attn_ext.hasse.inputs import token
from hf_attn_ext.hasse.summary import summarise
from hf_attn_ext.hasse.tasks.as_spec import spec_of_task
from hf_attn_ext.hasse.tasks.family import derive, groups

WRONG = [
    None,
    5,
    -1,
    2.5,
    True,
    float("nan"),
    10**400,
    2**31,
    2**63,
    "",
    "x",
    "a\nb",
    b"a",
    object(),
    set(),
    {},
    {1: 2},
]
WRONG += [[], [[]], [None], (1, 2), [[1, 0], [1]], np.array(3), np.eye(2), torch.tensor(2.0), lambda: 0]
TASK = Task("ab", {0: "b"}, np.tri(2))
JOINT = minimal_joint_task([TASK])
POSET = TASK.poset
SPEC = masks.causal(3)


def spec(**fields):
    known = {"name": "m", "tokens": 2, "form": lambda q, kv, *tables: kv <= q, "inputs": (token(0), token(1))}
    made = MaskSpec(**known | {"roles": ("a", "b"), "position_ids": torch.arange(2), "labels": {}} | fields)
    return made.dense(), made.bits(), made.check(), made.text(), repr(made), summarise(made)


def joint_task(**fields):
    known = {"inputs": "ab", "labels": {}, "mask": BitMatrix.from_dense(np.tri(2, dtype=bool)), "tasks": [TASK]}
    return JointTask(**known | {"sources": [[(0, 0)], [(0, 1)]]} | fields).verify()


CALLS = {
    "information_flow": information_flow,
    "information_flow, num_layers": lambda wrong: information_flow(np.eye(2), wrong),
    "convergence_depth": convergence_depth,
    "from_mask": Poset.from_mask,
    "from_mask, inputs": lambda wrong: Poset.from_mask(np.eye(2), wrong),
    "from_covers, classes": lambda wrong: Poset.from_covers(wrong, []),
    "from_covers, a class": lambda wrong: Poset.from_covers([[0], wrong], []),
    "from_covers, a position": lambda wrong: Poset.from_covers([[0], [wrong]], []),
    "from_covers, covers": lambda wrong: Poset.from_covers([[0], [1]], wrong),
    "from_covers, a cover": lambda wrong: Poset.from_covers([[0], [1]], [wrong]),
    "from_covers, an end": lambda wrong: Poset.from_covers([[0], [1]], [(0, wrong)]),
    "from_json": Poset.from_json,
    "Poset": Poset,
    "is_isomorphic": POSET.is_isomorphic,
    "lower_covers": POSET.lower_covers,
    "upper_covers": POSET.upper_covers,
    "down_set": POSET.down_set,
    "reaches": lambda wrong: POSET.reaches(0, wrong),
    "Task, inputs": lambda wrong: Task(wrong, {}, np.eye(2)),
    "Task, an input": lambda wrong: Task([wrong], {}, np.eye(1)),
    "Task, labels": lambda wrong: Task("ab", wrong, np.eye(2)),
    "Task, a label": lambda wrong: Task("ab", {0: wrong}, np.eye(2)),
    "Task, mask": lambda wrong: Task("ab", {}, wrong),
    "sparsify": TASK.sparsify,
    "sparsify, within": lambda wrong: TASK.sparsify(1, wrong),
    "permuted": TASK.permuted,
    "JointTask.permuted": JOINT.permuted,
    "minimal_joint_task": minimal_joint_task,
    "minimal_joint_task, a task": lambda wrong: minimal_joint_task([wrong]),
    "minimal_joint_task, conflicts": lambda wrong: minimal_joint_task([TASK], wrong),
    "BitMatrix, words": lambda wrong: BitMatrix(wrong, 3),
    "BitMatrix, columns": lambda wrong: BitMatrix(np.zeros((2, 1), np.uint64), wrong),
    "from_dense": BitMatrix.from_dense,
    "from_integers": lambda wrong: BitMatrix.from_integers(wrong, 3),
    "from_integers, a row": lambda wrong: BitMatrix.from_integers([wrong], 3),
    "closed form's result": lambda wrong: spec(form=lambda q, kv: wrong),
    "a label of a mask": lambda wrong: spec(labels={0: wrong}),
    "rows": SPEC.rows,
    "to_block_mask": lambda wrong: SPEC.to_block_mask("cpu", wrong),
    "check": SPEC.check,
    "make_mask": masks.make_mask,
    "groups": groups,
    "derive": derive,
    "figure": figure,
    "draw": lambda wrong: draw(wrong, "x.png"),
    "draw, path": lambda wrong: draw(SPEC, wrong),
    "draw, what": lambda wrong: draw(SPEC, "x.png", wrong),
    "summarise": summarise,
    "read_mask_file": read_mask_file,
    "read_tasks_file": read_tasks_file,
    "write_mask_file": lambda wrong: write_mask_file(wrong, "x.npy"),
    "write_mask_file, path": lambda wrong: write_mask_file(SPEC, wrong),
    "spec_of_task": spec_of_task,
}
for field in ("inputs", "labels", "mask", "tasks", "sources"):
    CALLS[f"JointTask, {field}"] = lambda wrong, field=field: joint_task(**{field: wrong})
for field in ("name", "tokens", "inputs", "roles", "position_ids", "labels", "tables", "names", "options", "window"):
    CALLS[f"MaskSpec, {field}"] = lambda wrong, field=field: spec(**{field: wrong})
for field in ("labels", "inputs", "roles", "position_ids", "tokens", "name", "names"):
    CALLS[f"from_mask, {field}"] = lambda wrong, field=field: MaskSpec.from_mask(np.eye(2), **{field: wrong}).check()
for name in masks.list_masks():
    for option in masks.mask_entry(name).options:
        example = masks.mask_entry(name).example
        CALLS[f"{name}, {option}"] = lambda wrong, name=name, example=example, option=option: masks.make_mask(
            name, **example | {option: wrong}
        )


def refusal(call, wrong):
    """The message with which a call refuses a value, or None."""
    try:
        call(wrong)
    except AttnExtError as error:
        return str(error)
    return None


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_the_wrong_thing_is_one_line(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refusals = [(wrong, refusal(call, wrong)) for wrong in WRONG]
    for wrong, message in refusals:
        assert message is None or ("\n" not in message and len(message) < 500), (wrong, message)
    assert sum(message is not None for _, message in refusals) >= 4
