"""Two processes on CPU train the language model that one with the doubled batch trains, teacher and all."""

import json

from hf_attn_ext.training import distill
from tests.training import small_gpt
from tests.training.test_processes import assert_close, torchrun


def sections(batch_size: int) -> dict:
    stage = {"steps": 4, "evaluate_every": 2, "batch_size": batch_size}
    return {
        "teacher": {"steps": 0},
        "stage1": {**stage, "queries_per_sequence": 5},
        "stage2": {**stage, "distillation": 0.5, "feature_map_lr": 1e-2},
    }


def test_two_processes_equal_one_with_the_doubled_batch(tmp_path):
    small_gpt.prepare(tmp_path)
    distill(small_gpt.settings(tmp_path, "one", **sections(8)))
    config = small_gpt.settings(tmp_path, "two", processes=2, **sections(4))
    done = torchrun(tmp_path, config, ACCELERATE_USE_CPU="true")
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads((tmp_path / "two" / "results.json").read_text())["processes"] == 2
    assert done.stdout.count("after stage 2") == 1 and "unused" not in done.stderr
    assert_close(tmp_path, "one", "two")
