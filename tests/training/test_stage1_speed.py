"""examples/stage1_speed.py at a small size: both ways compute the same loss, so their times can be compared."""

import importlib.util
from pathlib import Path

import pytest

from tests.training import small

SCRIPT = Path(__file__).parents[2] / "examples" / "stage1_speed.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("stage1_speed", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("kernel", ["flexformer_c", "hedgehog"])
def test_both_ways_start_from_the_same_loss(script, tmp_path, kernel):
    """With one layer the student's stream is the teacher's; with more they part, since the student runs on kernels."""
    small.save_model(tmp_path / "one", num_hidden_layers=1)
    found = script.measure(str(tmp_path / "one"), kernel, num_features=4, batch_size=2, length=12, steps=2)
    assert found["first_loss_ours"] == pytest.approx(found["first_loss_usual"], rel=1e-5)
    assert found["ratio"] == pytest.approx(found["usual"] / found["ours"])


def test_two_layers_train_both_ways(script, tmp_path):
    small.save_model(tmp_path / "two")
    found = script.measure(str(tmp_path / "two"), "flexformer_c", num_features=4, batch_size=2, length=12, steps=1)
    assert found["first_loss_ours"] > 0 and found["first_loss_usual"] > 0
