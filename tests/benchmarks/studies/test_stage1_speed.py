"""The study of the speed of stage 1 at a small size: both ways compute the same loss, so times compare."""

import pytest

from benchmarks.studies import stage1_speed
from tests.training import small


@pytest.mark.parametrize("kernel", ["flexformer_p", "hedgehog"])
def test_both_ways_start_from_the_same_loss(tmp_path, kernel):
    """With one layer the student's stream is the teacher's; with more they part, since the student runs on kernels."""
    small.save_model(tmp_path / "one", num_hidden_layers=1)
    found = stage1_speed.measure(str(tmp_path / "one"), kernel, num_features=4, batch_size=2, length=12, steps=2)
    assert found["first_loss_ours"] == pytest.approx(found["first_loss_usual"], rel=1e-5)
    assert found["ratio"] == pytest.approx(found["usual"] / found["ours"])


def test_two_layers_train_both_ways(tmp_path):
    small.save_model(tmp_path / "two")
    found = stage1_speed.measure(
        str(tmp_path / "two"), "flexformer_p", num_features=4, batch_size=2, length=12, steps=1
    )
    assert found["first_loss_ours"] > 0 and found["first_loss_usual"] > 0
