"""``hf-attn-ext mask``: what the three commands print and write, and every mistake in one line."""

import json

import numpy as np
import pytest
import torch

from hf_attn_ext.hasse import masks
from hf_attn_ext.hasse.files.read import read_mask_file
from hf_attn_ext.hasse.files.write import write_mask_file

FAMILY = [
    {"inputs": [["the", 0]], "labels": {"0": ["cat", 1]}, "mask": "causal"},
    {"inputs": [["the", 0], ["cat", 1]], "labels": {"1": ["sat", 2]}, "mask": "causal"},
    {"inputs": [["the", 0], ["cat", 1], ["sat", 2]], "mask": "causal"},
]


@pytest.fixture
def tasks(tmp_path):
    path = tmp_path / "tasks.json"
    path.write_text(json.dumps(FAMILY))
    return path


@pytest.mark.parametrize("name", masks.list_masks())
def test_show_every_mask_without_options(run, name):
    done = run("mask", "show", name)
    assert done.code == 0 and done.err == ""
    entry = masks.mask_entry(name)
    spec = entry.make(**entry.example)
    assert done.out.startswith(spec.title) and spec.text() in done.out
    for word in ("classes ", "covers ", "height ", "width ", "depth ", "Hasse diagram", "note: supervision"):
        assert word in done.out


@pytest.mark.parametrize(
    ("words", "spec"),
    [
        (["causal", "--n", 3], masks.causal(3)),
        (["prefix_lm", "--n", 5, "--p", 2], masks.prefix_lm(5, 2)),
        (["sliding_window", "--n", 5, "--w", 2], masks.sliding_window(5, 2)),
        (["document", "--lengths", "2,3", "--no-causal"], masks.document([2, 3], causal=False)),
        (["block_diffusion", "--n", 5, "--b", 2], masks.block_diffusion(5, 2)),
        (["xlnet_two_stream", "--perm", "1,0"], masks.xlnet_two_stream([1, 0])),
        (["masked_autoencoder", "--n", 4, "--visible", "0,3"], masks.masked_autoencoder(4, [0, 3])),
        (
            ["block_two_stream", "--n", 5, "--block-size", 2, "--context", "token", "--starts", "every"],
            masks.block_two_stream(5, 2, "token", "every"),
        ),
        (["butterfly", "--n", 6, "--window", 2], masks.butterfly(6, window=2)),
    ],
)
@pytest.mark.parametrize("suffix", [".npy", ".pt", ".json", ".csv"])
def test_show_writes_the_mask_that_was_asked_for(run, tmp_path, words, spec, suffix):
    out = tmp_path / f"mask{suffix}"
    done = run("mask", "show", *words, "--out", out)
    assert done.code == 0, done.err
    assert f"written: {out}" in done.out
    assert torch.equal(read_mask_file(out).dense(), spec.dense())
    assert run("mask", "analyze", out).code == 0


@pytest.mark.parametrize("what", ["both", "mask", "hasse"])
@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_show_writes_pictures(run, tmp_path, what, suffix):
    out = tmp_path / f"mask{suffix}"
    assert run("mask", "show", "butterfly", "--n", 4, "--out", out, "--what", what).code == 0
    first = out.read_bytes()
    assert first.startswith(b"\x89PNG" if suffix == ".png" else b"<?xml")
    assert run("mask", "show", "butterfly", "--n", 4, "--out", out, "--what", what).code == 0
    assert out.read_bytes() == first


def test_show_compares_the_depth_with_the_models_layers(run):
    assert "note: depth" in run("mask", "show", "sliding_window", "--n", 9, "--w", 3, "--layers", 4).out
    done = run("mask", "show", "sliding_window", "--n", 9, "--w", 3, "--layers", 3)
    assert done.code == 0 and "warning: depth: after 4 layers" in done.out


def test_analyze_prints_the_order(run, tmp_path):
    path = tmp_path / "mask.npy"
    np.save(path, masks.block_diffusion(8, 4).dense().numpy())
    done = run("mask", "analyze", path)
    assert done.code == 0
    printed = dict(line.split(maxsplit=1) for line in done.out.splitlines()[2:9])
    assert {key: printed[key] for key in ("classes", "covers", "height", "width", "depth")} == {
        "classes": "4",
        "covers": "2",
        "height": "2",
        "width": "3",
        "depth": "1 layer",
    }
    assert printed["pairs"] == "96 of 256 (37.5%)"
    assert "w4..w7        over w8..w11" in done.out


def test_analyze_says_which_position_fails_and_why(run, tmp_path):
    path = tmp_path / "mask.json"
    write_mask_file(masks.bidirectional(3), path)
    assert run("mask", "analyze", path).code == 0
    done = run("mask", "analyze", path, "--labels", "0:1,1:0")
    assert "classes    1" in done.out and "error: target leak: position 1" in done.out
    message = done.mistake()
    assert "position 0 (w0) must predict token 1, which reaches it in 1 layer: w0 <- w1" in message
    assert "(and more errors)" in message
    np.save(tmp_path / "empty.npy", np.array([[1, 0], [0, 0]]))
    assert "empty row: position 1 (w1)" in run("mask", "analyze", tmp_path / "empty.npy").mistake()


def test_derive_prints_and_writes_the_joint_task(run, tasks, tmp_path):
    out = tmp_path / "joint.json"
    done = run("mask", "derive", tasks, "--out", out)
    assert done.code == 0, done.err
    assert "3 tasks with 6 positions -> 3 positions" in done.out and "verified" in done.out
    assert [line.split() for line in done.out.splitlines()[3:6]] == [
        ["0", "the@0", "cat@1", "0:0", "1:0", "2:0"],
        ["1", "cat@1", "sat@2", "1:1", "2:1"],
        ["2", "sat@2", "2:2"],
    ]
    read = read_mask_file(out)
    assert torch.equal(read.dense(), masks.causal(3).dense()) and read.labels == {0: 1, 1: 2}
    assert read.names == ("the@0", "cat@1", "sat@2")


def test_derive_in_a_window(run, tasks, tmp_path):
    out = tmp_path / "joint.npy"
    assert run("mask", "derive", tasks, "--window", 1, "--out", out).code == 0
    assert np.array_equal(np.load(out), masks.sliding_window(3, 2).dense().numpy())


def test_derive_refuses_a_family_that_leaks(run, tmp_path):
    path = tmp_path / "tasks.json"
    path.write_text(json.dumps([{"inputs": ["a", "b"], "labels": {"0": "b"}, "mask": "bidirectional"}]))
    message = run("mask", "derive", path).mistake()
    assert "position 0 (a) must predict token 1, which reaches it in 1 layer: a <- b" in message


def test_derive_reports_conflicting_labels(run, tmp_path):
    path = tmp_path / "tasks.json"
    family = [{"inputs": ["a"], "labels": {"0": label}, "mask": "causal"} for label in ("b", "c")]
    path.write_text(json.dumps(family))
    message = run("mask", "derive", path).mistake()
    assert "'b'" in message and "'c'" in message and "two labels" in message


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["show", "buterfly"], ["unknown mask 'buterfly'", "Did you mean 'butterfly'"]),
        (["show"], ["name"]),
        (["show", "causal", "--n", 0], ["n must be a whole number of at least 1, got 0"]),
        (["show", "causal", "--n", "x"], ["--n", "'x'"]),
        (["show", "causal", "--w", 3], ["mask 'causal' has no option --w; its options: --n"]),
        (["show", "causal", "--size", 3], ["--size"]),
        (["show", "causal", "--layers", 0], ["--layers"]),
        (["show", "block_two_stream", "--block-size", 0], ["block_size must be a whole number from 1 to 6, got 0"]),
        (["show", "block_two_stream", "--n", 4, "--block-size", 5], ["from 1 to 4, got 5"]),
        (["show", "block_two_stream", "--context", "block", "--starts", "every"], ["leaks", "begun block"]),
        (["show", "block_two_stream", "--context", "tokn"], ["'tokn'", "Did you mean 'token'"]),
        (["show", "block_diffusion", "--n", 3], ["from 1 to 3, got 4; --b was left out, 4 is the example's"]),
        (["show", "xlnet_two_stream", "--perm", "0,0"], ["each of 0 to 1 once, got [0, 0]"]),
        (["show", "xlnet_two_stream", "--perm", "0,a"], ["--perm must be whole numbers with commas", "'0,a'"]),
        (["show", "document", "--lengths", ""], ["at least one document"]),
        (["show", "causal", "--out", "a.pdf"], ["--out must end in", "'a.pdf'"]),
        (["show", "causal", "--out", "no-such-folder/a.png"], ["'no-such-folder' does not exist"]),
        (["show", "causal", "--what", "hass"], ["'hass'", "Did you mean 'hasse'"]),
        (["analyze", "no-such-file.npy"], ["there is no file 'no-such-file.npy'"]),
        (["analyze", "mask.txt"], ["ending in .npy, .pt, .json, .csv, got 'mask.txt'"]),
        (["derive", "no-such-file.json"], ["there is no file 'no-such-file.json'"]),
        (["derive", "tasks.yaml"], ["ending in .json, got 'tasks.yaml'"]),
        (["analize", "a.npy"], ["'analize'"]),
    ],
)
def test_mistakes(run, words, said):
    message = run("mask", *words).mistake()
    for part in said:
        assert part in message


@pytest.mark.parametrize(
    ("content", "labels", "said"),
    [
        ("[[1, 0]]", None, "must be square"),
        ("[[1, 2], [0, 1]]", None, "Boolean-like"),
        ("[[1, NaN], [0, 1]]", None, "NaN"),
        ("[]", None, "empty"),
        ("[[1]]", "3:0", "a label is at position 3; the positions are 0 to 0"),
        ("[[1]]", "0:0,0:1", "position 0 has two labels"),
        ("[[1]]", "0", "position:token"),
        ("[[1]]", "a:b", "position:token"),
    ],
)
def test_bad_masks(run, tmp_path, content, labels, said):
    path = tmp_path / "mask.json"
    path.write_text(content)
    more = [] if labels is None else ["--labels", labels]
    assert said in run("mask", "analyze", path, *more).mistake()


def test_repeated_and_unhashable_inputs(run, tmp_path):
    path = tmp_path / "tasks.json"
    path.write_text(json.dumps([{"inputs": ["a", "a"], "mask": "causal"}]))
    assert "input 'a' is repeated at positions 0 and 1" in run("mask", "derive", path).mistake()
    path.write_text(json.dumps([{"inputs": [{"a": 1}], "mask": "causal"}]))
    assert "unhashable" in run("mask", "derive", path).mistake()


def test_list_and_help(run):
    assert set(run("list", "masks").out.split()) == set(masks.list_masks())
    assert "masks:" in run("list").out
    for words in (["mask", "--help"], ["mask", "show", "--help"], ["mask", "analyze", "--help"]):
        done = run(*words)
        assert done.code == 0 and "Usage: hf-attn-ext mask" in done.out


def test_a_mask_too_large_to_order_is_one_line(run):
    done = run("mask", "show", "causal", "--n", 65537)
    assert done.code == 2 and done.out == "" and "65537 positions; mask show orders at most 32768" in done.err
