"""How a demo compares the model that a fresh process opened with the run."""

import json
import re

import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.torch import save_file

from benchmarks.studies.demo.fresh_process import check_reopened, tensor_digests

WEIGHTS = {"weight": torch.arange(6.0).reshape(2, 3), "steps": torch.tensor(7), "half": torch.ones(2).bfloat16()}
LOGITS = np.array([[1.0, -3.0]], dtype=np.float32)


@pytest.fixture
def check(tmp_path, capsys):
    """Compare opened tensors and logits with WEIGHTS and LOGITS; returns the verdict, what was printed and stderr."""
    save_file(WEIGHTS, tmp_path / "model.safetensors")

    def compare(opened, logits=LOGITS):
        fresh = {"tensors": np.array(json.dumps(tensor_digests(opened))), "logits": logits}
        same = check_reopened(Console(width=200), tmp_path, fresh, {"logits": LOGITS})
        return same, *capsys.readouterr()

    return compare


def test_equal_weights_and_logits(check):
    same, printed, errors = check(WEIGHTS)
    assert same and not errors
    assert "3 weights and buffers compared, all equal bit for bit" in printed
    assert "2 logits compared, largest difference 0.0, tolerance 4.0e-04" in printed


def test_a_tied_weight_may_be_saved_under_one_name(check):
    assert check({**WEIGHTS, "head.weight": WEIGHTS["weight"]})[0]


@pytest.mark.parametrize(
    ("opened", "named"),
    [
        ({**WEIGHTS, "weight": WEIGHTS["weight"] + 1e-6}, "weight"),
        ({**WEIGHTS, "weight": WEIGHTS["weight"].reshape(3, 2)}, "weight"),
        ({**WEIGHTS, "half": WEIGHTS["half"].float()}, "half"),
        ({name: WEIGHTS[name] for name in ("weight", "half")}, "steps"),
        ({**WEIGHTS, "new": torch.zeros(3)}, "new"),
    ],
)
def test_a_weight_that_differs_in_one_bit_fails(check, opened, named):
    same, printed, errors = check(opened)
    assert not same and "weights and buffers compared, 1 differ" in printed
    assert re.search(f"error: .*weights or buffers are not those that were saved, among them {named}$", errors, re.M)


@pytest.mark.parametrize(("difference", "expected"), [(3e-6, True), (3e-4, True), (5e-4, False), (np.nan, False)])
def test_logits_must_lie_within_the_tolerance(check, difference, expected):
    same, printed, errors = check(WEIGHTS, LOGITS + np.float32(difference))
    assert same is expected and "all equal bit for bit" in printed
    assert ("logits differ from those of the run by" in errors) is not expected
