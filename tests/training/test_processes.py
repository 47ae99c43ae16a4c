"""Two processes on CPU equal one with the doubled batch; accumulation equals the bigger batch; launch mistakes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from accelerate import Accelerator
from safetensors.torch import load_file
from transformers import RobertaForSequenceClassification

from hf_attn_ext import AttnExtError
from hf_attn_ext._util.processes import check_processes
from hf_attn_ext.training import distill
from hf_attn_ext.training.launch import TWO_ON_CPU
from hf_attn_ext.training.stages.finetune import _freeze_unused
from tests.training import small

ROOT = Path(__file__).parents[2]
STAGE = {"steps": 5, "evaluate_every": 2, "group_by_length": True}


def sections(batch_size: int, accumulate: int = 1) -> dict:
    stage = {**STAGE, "batch_size": batch_size, "accumulate": accumulate}
    return {
        "kernel": {"kernel": "flexformer_p", "num_features": 4},
        "teacher": {"steps": 0},
        "stage1": {**stage, "queries_per_sequence": 5},
        "stage2": {**stage, "distillation": 0.5, "feature_map_lr": 1e-2},
    }


def torchrun(root: Path, config: dict, **environment: str) -> subprocess.CompletedProcess:
    path = root / "two.yaml"
    path.write_text(yaml.safe_dump(config))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    variables = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "LOCAL_RANK")}
    variables |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **environment}
    command += ["-m", "hf_attn_ext.distill", "--config", str(path)]
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=300)


def assert_close(root: Path, one: str, two: str) -> None:
    first, second = (load_file(root / name / "model" / "model.safetensors") for name in (one, two))
    assert first.keys() == second.keys()
    for key in first:
        torch.testing.assert_close(
            first[key], second[key], rtol=0, atol=1e-5, msg=lambda text, key=key: f"{key}: {text}"
        )
    results = [json.loads((root / name / "results.json").read_text()) for name in (one, two)]
    for step, transfer in results[0]["transfer"].items():
        assert transfer["output_error"] == pytest.approx(results[1]["transfer"][step]["output_error"], rel=1e-4)
        assert transfer["queries"] == results[1]["transfer"][step]["queries"]
    for step, scores in results[0]["scores"].items():
        assert scores == pytest.approx(results[1]["scores"][step], abs=1e-4)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Dropout off: its masks are drawn per process."""
    off = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    folder = small.prepare(tmp_path_factory.mktemp("processes"), head=True, **off)
    distill(small.settings(folder, "one", **sections(8)))
    return folder


def test_two_processes_equal_one_with_the_doubled_batch(root):
    done = torchrun(root, small.settings(root, "two", processes=2, **sections(4)), ACCELERATE_USE_CPU="true")
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads((root / "two" / "results.json").read_text())["processes"] == 2
    assert "unused" not in done.stderr
    assert done.stdout.count("after stage 2") == 1  # one process speaks
    assert_close(root, "one", "two")


def test_accumulation_equals_the_bigger_batch(root):
    distill(small.settings(root, "accumulated", **sections(2, accumulate=4)))
    assert_close(root, "one", "accumulated")


def test_processes_that_run_alone_stop(root):
    """torchrun without ACCELERATE_USE_CPU, on a machine without GPU: two whole runs in one folder, if nobody looks."""
    done = torchrun(root, small.settings(root, "alone"), ACCELERATE_USE_CPU="false", CUDA_VISIBLE_DEVICES="")
    assert done.returncode != 0
    assert "each of them runs alone: set ACCELERATE_USE_CPU=true" in done.stderr
    assert not (root / "alone").exists()


@pytest.mark.parametrize(
    ("wanted", "running", "environment", "said"),
    [
        (2, 1, {}, "asks for 2 processes, but 1 runs"),
        (1, 2, {"WORLD_SIZE": "2"}, "asks for 1 processes, but 2 run"),
        (None, 1, {"WORLD_SIZE": "4"}, "started 4 processes"),
        (None, 1, {"MASTER_ADDR": "127.0.0.1", "ACCELERATE_MIXED_PRECISION": "no"}, "asked for several processes"),
    ],
)
def test_a_wrong_number_of_processes_is_told(wanted, running, environment, said):
    with pytest.raises(AttnExtError, match=said):
        check_processes(wanted, running, environment, TWO_ON_CPU)


@pytest.mark.parametrize(
    ("wanted", "running", "environment"),
    [
        (None, 1, {}),
        (None, 2, {"WORLD_SIZE": "2", "MASTER_ADDR": "x", "ACCELERATE_MIXED_PRECISION": "no"}),
        (None, 1, {"WORLD_SIZE": "1", "MASTER_ADDR": "x"}),
        (1, 1, {"MASTER_ADDR": "x", "ACCELERATE_MIXED_PRECISION": "no"}),
        (None, 1, {"ACCELERATE_MIXED_PRECISION": "no"}),
    ],
)
def test_a_right_number_passes(wanted, running, environment):
    check_processes(wanted, running, environment, TWO_ON_CPU)


def test_accelerate_launch_with_two_cpu_processes_stops(root):
    """What the launcher really does: one process, silently."""
    path = root / "launch.yaml"
    path.write_text(yaml.safe_dump(small.settings(root, "launch")))
    command = [sys.executable, "-m", "accelerate.commands.launch", "--cpu", "--num_processes", "2"]
    variables = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "LOCAL_RANK")}
    variables |= {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command += ["-m", "hf_attn_ext.distill", "--config", str(path)]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    assert "error: accelerate launch was asked for several processes but started one" in done.stderr
    assert not (root / "launch").exists()


def test_parameters_that_take_no_part_are_frozen_before_processes_wait_for_them():
    torch.manual_seed(0)
    model = RobertaForSequenceClassification(small.host_config())
    model.spare = torch.nn.Linear(3, 3)
    batch = {"input_ids": torch.tensor([[0, 6, 2]]), "attention_mask": torch.ones(1, 3, dtype=torch.int64)}
    state = torch.get_rng_state()
    _freeze_unused(model, batch, Accelerator(cpu=True), "stage2")
    assert {name for name, p in model.named_parameters() if not p.requires_grad} == {"spare.weight", "spare.bias"}
    assert all(parameter.grad is None for parameter in model.parameters()) and model.training
    assert torch.get_rng_state().equal(state)  # no dropout was drawn: one process and two stay alike
