"""Masks and tasks in files: what is written is read back, and every mistake has one line."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.hasse import MaskSpec, Task, masks, minimal_joint_task
from hf_attn_ext.hasse.drawing.draw import draw
from hf_attn_ext.hasse.files.read import read_mask_file, read_tasks_file
from hf_attn_ext.hasse.files.write import write_mask_file
from hf_attn_ext.hasse.inputs import input_text
from hf_attn_ext.hasse.tasks.as_spec import spec_of_task


@pytest.mark.parametrize("name", masks.list_masks())
@pytest.mark.parametrize("suffix", [".npy", ".pt", ".json", ".csv"])
def test_round_trip(tmp_path, name, suffix):
    entry = masks.mask_entry(name)
    spec = entry.make(**entry.example)
    path = tmp_path / f"mask{suffix}"
    write_mask_file(spec, path)
    read = read_mask_file(path)
    assert torch.equal(read.dense(), spec.dense())
    if suffix in (".pt", ".json"):
        assert read.inputs == spec.inputs and read.labels == dict(spec.labels) and read.roles == spec.roles
        assert read.names == spec.names and read.tokens == spec.tokens and read.name == spec.title
        assert torch.equal(read.position_ids, spec.position_ids)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def write(path, content):
    if path.suffix == ".npy":
        np.save(path, content, allow_pickle=True)
    elif path.suffix == ".pt":
        torch.save(content, path)
    elif isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.npy", np.ones((2, 3)), "must be square"),
        ("a.npy", np.ones((0, 0)), "is empty"),
        ("a.npy", np.array([[1, np.nan], [0, 1]]), "NaN"),
        ("a.npy", np.array([[1, -np.inf], [0, 1]]), "Boolean-like"),
        ("a.npy", np.array([[{}]], dtype=object), "without pickle"),
        ("b.pt", torch.ones(2, 3), "must be square"),
        ("b.pt", torch.tensor([[1, 2], [0, 1]]), "Boolean-like"),
        ("b.pt", {"labels": {}}, "needs the field 'mask'"),
        ("b.pt", {"mask": torch.eye(2), "lables": {}}, "unknown field 'lables'. Did you mean 'labels'?"),
        ("b.pt", {"mask": torch.eye(2), "position_ids": torch.tensor([0])}, "1 position_ids for 2 positions"),
        ("c.json", "{", "is not JSON"),
        ("c.json", "[]", "is empty"),
        ("c.json", "[[1, 0], [1]]", "different lengths"),
        ("c.json", "[[1, NaN], [1, 1]]", "NaN"),
        ("c.json", '{"mask": [[1]], "mask": [[0]]}', "'mask' twice in one object"),
        ("c.json", {"mask": [[1]], "labels": {"1": 0}}, "a label is at position 1; the positions are 0 to 0"),
        ("c.json", {"mask": [[1]], "labels": {"a": 0}}, "labels are given by position, a whole number, got 'a'"),
        ("c.json", {"mask": [[1]], "labels": {"0": 1, "00": 1}}, "position 0 has two labels"),
        ("c.json", {"mask": [[1]], "labels": {"0": "b"}}, "must be a token's number, got 'b'"),
        ("c.json", {"mask": [[1]], "labels": [0]}, "labels must map positions to labels"),
        ("c.json", {"mask": [[1]], "roles": [1]}, "roles must be texts"),
        ("c.json", {"mask": [[1]], "position_ids": ["a"]}, "position_ids must be whole numbers"),
        ("c.json", {"mask": [[1]], "inputs": 3}, "inputs must be a list"),
        ("c.json", {"mask": [[1]], "name": 3}, "name must be a string"),
        ("c.json", {"mask": [[1]], "tokens": 0}, "tokens must be a whole number from 1"),
        ("c.json", {"mask": [[1]], "tokens": -5}, "tokens must be a whole number from 1"),
        ("c.json", {"mask": [[1]], "tokens": True}, "tokens must be a whole number from 1"),
        ("c.json", {"mask": [[1]], "labels": {"0": 10**30}}, "tokens must be a whole number from 1"),
        ("c.json", {"mask": [[1]], "labels": {"0.5": 0}}, "labels are given by position"),
        ("c.json", {"mask": [[1]], "labels": {"9" * 5000: 0}}, "labels are given by position"),
        ("c.json", {"mask": [[1]], "position_ids": [10**30]}, "whole numbers that fit int64"),
        ("c.json", {"mask": [[1]], "inputs": [["token", 10**30]]}, "whole numbers that fit int64"),
        ("c.json", {"mask": [[1]], "inputs": [{}]}, "the input at position 0 is unhashable"),
        ("c.json", {"mask": [[1]], "inputs": [[{}]]}, "the input at position 0 is unhashable"),
        ("c.json", "[[1" + "9" * 5000 + "]]", "is not JSON"),
        ("c.json", "[" * 60 + "]" * 60, "nested more than 50 deep"),
        ("c.json", "[" * 100000, "nested more than 50 deep"),
        ("b.pt", {"mask": torch.eye(2), "labels": {None: 1}}, "labels are given by position"),
        ("b.pt", {"mask": torch.eye(2), "labels": {0.5: 1}}, "labels are given by position"),
        ("b.pt", {"mask": torch.eye(2), "labels": {True: 1}}, "labels are given by position"),
        ("b.pt", {"mask": torch.eye(2), "position_ids": [2**70, 1]}, "whole numbers that fit int64"),
        ("b.pt", {"mask": torch.eye(2), "position_ids": torch.ones(2, 2).long()}, "position_ids"),
        ("d.csv", '"1\n', "is not CSV"),
        ("d.csv", "", "is empty"),
        ("d.csv", "1,0\n1\n", "row 1 has 1 cells, row 0 has 2"),
        ("d.csv", "1,0\n1,x\n", "row 1, column 1 is 'x'"),
        ("d.csv", "1,nan\n1,1\n", "NaN"),
        ("d.csv", b"\xff\xfe", "is not CSV"),
        ("e.txt", "1", "ending in .npy, .pt, .json, .csv, got 'e.txt'"),
    ],
)
def test_bad_masks(tmp_path, name, content, said):
    path = write(tmp_path / name, content)
    with pytest.raises(AttnExtError, match=said) as caught:
        read_mask_file(path)
    assert name in str(caught.value)


def test_files_that_are_not_there_or_not_what_they_say(tmp_path):
    with pytest.raises(AttnExtError, match="there is no file"):
        read_mask_file(tmp_path / "a.npy")
    for name in ("a.npy", "a.pt"):
        (tmp_path / name).write_bytes(b"nonsense")
        with pytest.raises(AttnExtError, match=f"{name} is no"):
            read_mask_file(tmp_path / name)
    for name, said in (("a.txt", "ending in"), ("none/a.npy", "does not exist")):
        with pytest.raises(AttnExtError, match=said):
            write_mask_file(masks.causal(2), tmp_path / name)


@pytest.mark.filterwarnings("error")
def test_files_of_other_programs(tmp_path):
    for name, content in (("a.csv", "1,0\n1,1\n"), ("a.json", "[[1, 0], [1, 1]]")):  # as spreadsheets write them
        (tmp_path / name).write_text(content, encoding="utf-8-sig")
        assert read_mask_file(tmp_path / name).dense().tolist() == [[True, False], [True, True]]
    for protocol in range(6):  # torch warns of some; one line is enough
        (tmp_path / "a.pt").write_bytes(pickle.dumps(Path("a"), protocol=protocol))
        with pytest.raises(AttnExtError, match=r"is not a file of torch.save"):
            read_mask_file(tmp_path / "a.pt")


def test_writing_is_whole_or_not_at_all(tmp_path):
    for suffix in (".npy", ".svg"):
        write_any = write_mask_file if suffix == ".npy" else draw
        longest = tmp_path / ("a" * (255 - len(suffix)) + suffix)  # as long as a name may be
        write_any(masks.causal(2), longest)
        assert [path.name for path in tmp_path.iterdir()] == [longest.name]
        longest.unlink()
        for bad in (tmp_path / ("a" * 300 + suffix), Path("/proc") / f"x{suffix}"):
            with pytest.raises(AttnExtError, match="cannot write") as caught:
                write_any(masks.causal(2), bad)
            assert str(bad) in str(caught.value) and not list(tmp_path.iterdir())


def test_a_pickle_is_not_executed(tmp_path):
    class Trap:
        def __reduce__(self):
            return (open, (str(tmp_path / "sprung"), "w"))

    torch.save({"mask": Trap()}, tmp_path / "trap.pt")
    with pytest.raises(AttnExtError, match="only tensors and plain values"):
        read_mask_file(tmp_path / "trap.pt")
    assert not (tmp_path / "sprung").exists()


def test_what_cannot_be_written_is_one_line_and_leaves_the_old_file(tmp_path):
    for value in (object(), float("inf"), np.int64(1), ("a", frozenset())):
        spec = MaskSpec.from_mask([[1]], inputs=[value])
        for name in ("a.json", "a.pt"):
            (tmp_path / name).write_text("old")
            with pytest.raises(AttnExtError, match="at position 0 cannot be written"):
                write_mask_file(spec, tmp_path / name)
            assert (tmp_path / name).read_text() == "old" and len(list(tmp_path.iterdir())) <= 2
    numbers = [("token", np.int64(1)), ("mean", np.int8(0), np.int16(1)), ("a", 1)]
    spec = MaskSpec.from_mask(np.tri(3), {np.int64(0): np.int32(1)}, numbers, tokens=np.uint8(3))
    for name in ("a.json", "a.pt"):
        write_mask_file(spec, tmp_path / name)
        read = read_mask_file(tmp_path / name)
        assert read.inputs == spec.inputs and read.labels == spec.labels == {0: 1} and read.tokens == 3


def test_names_are_one_line(tmp_path):
    odd = write(tmp_path / "a\n\x1b[31m.json", {"mask": [[1, 1], [1, 1]], "labels": {"0": 1}})
    with pytest.raises(AttnExtError, match="fails its check") as caught:
        read_mask_file(odd).check(raises=True)
    assert "\n" not in str(caught.value) and "\x1b" not in str(caught.value)
    for field, value in (("name", "a\nb"), ("names", ["a\nb"]), ("roles", ["\x1b[31m"])):
        with pytest.raises(AttnExtError, match="of one line"):
            read_mask_file(write(tmp_path / "a.json", {"mask": [[1]], field: value}))


def test_words_of_truth_and_given_labels(tmp_path):
    (tmp_path / "a.csv").write_text("True, false\n\n1,1.0\n")
    spec = read_mask_file(tmp_path / "a.csv", labels={0: 1})
    assert torch.equal(spec.dense(), masks.causal(2).dense()) and spec.labels == {0: 1}


def test_tasks(tmp_path):
    family = [
        {"inputs": [["the", 0]], "labels": {"0": ["cat", 1]}, "mask": "causal"},
        {"inputs": [["the", 0], ["cat", 1]], "labels": {"1": ["sat", 2]}, "mask": [[1, 0], [1, 1]]},
        {"inputs": [["the", 0], ["cat", 1], ["sat", 2]], "mask": {"groups": [1, 1, 1]}},
    ]
    for content in (family, {"tasks": family}):
        joint = minimal_joint_task(read_tasks_file(write(tmp_path / "t.json", content)))
        assert torch.equal(joint.mask, masks.causal(3).dense())
        spec = spec_of_task(joint)
        assert spec.names == ("the@0", "cat@1", "sat@2") and spec.labels == {0: 1, 1: 2}
        assert spec.position_ids.tolist() == [0, 1, 2]
        assert not [f for f in spec.check() if f.severity == "error"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(("sat", 2), "sat@2"), ("a\nb", "a\\nb"), ("", "''"), ((), "()"), (3, "3"), (None, "None"), (("$x$", 0), "$x$@0")],
)
def test_texts_of_inputs(value, text):
    assert input_text(value) == text


def test_a_label_like_an_input_is_that_token():
    spec = spec_of_task(Task(["a", "b"], {0: "b", 1: "z"}, [[1, 1], [1, 1]]))
    leaks = [f for f in spec.check() if f.kind == "target_leak"]
    assert [leak.path for leak in leaks] == [(0, 1)]
    # Inputs as masks write them keep their meaning.
    family = masks.butterfly(4).task_family()
    spec = spec_of_task(minimal_joint_task(family.tasks))
    assert spec.roles.count("mean") == 4 and not [f for f in spec.check() if f.severity == "error"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ([], "at least one task"),
        ({"task": []}, "unknown field 'task'. Did you mean 'tasks'?"),
        ({"tasks": 3}, "at least one task"),
        ([3], "task 0 must be an object"),
        ([{"inputs": ["a"]}], "task 0 needs the field 'mask'"),
        ([{"mask": [[1]]}], "task 0 needs the field 'inputs'"),
        ([{"inputs": "ab", "mask": "causal"}], "inputs must be a list"),
        ([{"inputs": ["a", "a"], "mask": "causal"}], "task 0: input 'a' is repeated"),
        ([{"inputs": [{"a": 1}], "mask": "causal"}], "is unhashable"),
        ([{"inputs": [[{"a": 1}]], "mask": "causal"}], "unhashable"),
        ([{"inputs": ["a"], "labels": {"0": {}}, "mask": "causal"}], "the label at position 0 is unhashable"),
        ([{"inputs": ["a"], "labels": {"0": [{}]}, "mask": "causal"}], "at position 0 is unhashable"),
        ([{"inputs": ["a"], "labels": {"0": float("nan")}, "mask": "causal"}], "nan at position 0 does not equal"),
        ([{"inputs": [["a", float("nan")]], "mask": "causal"}], "position 0 holds nan, which does not"),
        ([{"inputs": ["a"], "labels": 0, "mask": "causal"}], "labels must map positions to labels"),
        ([{"inputs": ["a"], "labels": [], "mask": "causal"}], "labels must map positions to labels"),
        ([{"inputs": ["a"], "mask": "casual"}], "got 'casual'. Did you mean 'causal'?"),
        ([{"inputs": ["a"], "mask": {"groups": [2]}}], "add up to 1 inputs"),
        ([{"inputs": ["a"], "mask": {"groups": [0.5, 0.5]}}], "add up to 1 inputs"),
        ([{"inputs": ["a"], "mask": [[1, 0], [1, 1]]}], "task 0: inputs must have one entry per position"),
        ([{"inputs": ["a"], "labels": {"3": "b"}, "mask": [[1]]}], "task 0: label 'b' is at position 3"),
        ([{"inputs": ["a"], "label": {}, "mask": [[1]]}], "unknown field 'label'"),
    ],
)
def test_bad_tasks(tmp_path, content, said):
    with pytest.raises(AttnExtError, match=said) as caught:
        read_tasks_file(write(tmp_path / "t.json", content))
    assert "\n" not in str(caught.value)


def test_what_a_mean_holds_is_not_lost():
    mask = [[1, 0, 0], [0, 1, 0], [1, 0, 1]]
    leaking = [("mean", 1, 0, 2), ("token", 3), ("mask", 2)]
    for label in (2, ("token", 2)):
        (leak, *_) = spec_of_task(Task(leaking, {2: label}, mask)).check()
        assert leak.severity == "error" and leak.path == (2, 0)
        assert spec_of_task(Task(leaking, {1: label}, mask)).check()[0].kind != "target_leak"
    for inputs, label in (([*leaking[:2], "a"], ("token", 2)), (leaking, "b")):  # no numbers to compare
        (leak, *_) = spec_of_task(Task(inputs, {2: label}, mask)).check()
        assert leak.kind == "target_leak" and leak.severity == "warning" and "cannot be ruled out" in leak.message


def test_targets_that_were_kept_are_still_targets():
    family = [Task("ab", {0: "b"}, [[1, 1], [1, 1]]), Task("c", {0: "d"}, [[1]])]
    leaks = [spec_of_task(minimal_joint_task(family, conflicts=how)).check()[0] for how in ("error", "keep")]
    assert leaks[0].kind == leaks[1].kind == "target_leak" and leaks[0].path == leaks[1].path == (0, 1)
    several = minimal_joint_task([*family, Task("c", {0: "e"}, [[1]])], conflicts="keep")
    with pytest.raises(AttnExtError, match="position 2 has 2 targets, but a mask holds at most one"):
        spec_of_task(several)


def test_an_unhashable_label_cannot_be_drawn():
    with pytest.raises(AttnExtError, match="the label at position 0 is unhashable"):
        spec_of_task(Task("a", {0: [1]}, [[1]]))
