"""Kill -9 anywhere and start again: the weights must equal, bit for bit, those of the run that was left alone."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from safetensors.torch import load_file

from hf_attn_ext import AttnExtError
from hf_attn_ext.training import distill
from tests.training import small

ROOT = Path(__file__).parents[2]

# (stage, the how-many-eth time in that life, where)
EXACT = [
    ("teacher", 2, "gradients"),  # before any checkpoint
    ("teacher", 1, "saving"),
    ("teacher", 5, "gradients"),
    ("stage1", 2, "renaming"),
    ("stage1", 1, "evaluating"),
    ("stage1", 2, "gradients"),
    ("stage2", 4, "gradients"),
    ("stage2", 2, "saving"),
    ("stage2", 1, "finishing"),
    ("stage2", 1, "tidying"),
]


def two_runs(root: Path, plans: list, random_kills: int, made=small, **sections) -> list[int]:
    made.prepare(root)
    paths = []
    for name in ("whole", "killed"):
        path = root / f"{name}.yaml"
        path.write_text(yaml.safe_dump(made.settings(root, name, **sections)))
        paths.append(str(path))
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("kill_driver.py")), *paths, json.dumps(plans), str(random_kills)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def assert_same(root: Path) -> None:
    for part in ("model", "teacher"):
        whole, killed = (load_file(root / name / part / "model.safetensors") for name in ("whole", "killed"))
        assert whole.keys() == killed.keys()
        for key, tensor in whole.items():
            assert tensor.equal(killed[key]), key
    scores = [json.loads((root / name / "results.json").read_text()) for name in ("whole", "killed")]
    for key in ("scores", "transfer", "validation"):
        assert scores[0][key] == scores[1][key]


def records(root: Path, name: str) -> list[dict]:
    kept = []
    for line in (root / name / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        record.pop("time", None)
        kept.append(record)
    return kept


def test_killed_at_every_kind_of_place(tmp_path):
    sections = {
        "teacher": {"evaluate_every": 3, "checkpoint_every": 2},
        "stage1": {"evaluate_every": 3, "checkpoint_every": 2, "queries_per_sequence": 4},
        "stage2": {"evaluate_every": 3, "checkpoint_every": 2, "distillation": 0.5, "accumulate": 2, "batch_size": 4},
    }
    ends = two_runs(tmp_path, EXACT, 0, **sections)
    assert ends == [9] * len(EXACT)
    assert_same(tmp_path)
    assert records(tmp_path, "whole") == records(tmp_path, "killed")  # no step twice, none missing
    left = {path.name for path in (tmp_path / "killed").iterdir()}
    assert left == {"model", "teacher", "logits", "results.json", "metrics.jsonl", "distill.json"}


def test_killed_at_random_times(tmp_path):
    steps = {"steps": 40, "evaluate_every": 8, "checkpoint_every": 5}
    ends = two_runs(tmp_path, [], 8, teacher=steps, stage1=steps, stage2=steps)
    assert ends.count(9) >= 3
    assert_same(tmp_path)
    assert records(tmp_path, "whole") == records(tmp_path, "killed")


def test_another_configuration_does_not_resume(tmp_path):
    small.prepare(tmp_path)
    sections = {"teacher": {"steps": 0}, "stage1": {"steps": 1}, "stage2": {"steps": 1}}
    values = small.settings(tmp_path, **sections)
    distill(values)
    stamp = (tmp_path / "run" / "results.json").stat().st_mtime_ns
    distill(values)  # finished: nothing is done again
    values["output"] = {**values["output"], "log_every": 7}  # touches no weight
    distill(values)
    assert (tmp_path / "run" / "results.json").stat().st_mtime_ns == stamp
    values["stage2"] = {**values["stage2"], "lr": 0.5}
    with pytest.raises(AttnExtError, match=r"stage2.lr was 0.002, is now 0.5"):
        distill(values)


def test_a_folder_that_holds_something_else_is_left_alone(tmp_path):
    small.prepare(tmp_path)
    thesis = tmp_path / "run" / "thesis.tex"
    thesis.parent.mkdir()
    thesis.write_text("x")
    with pytest.raises(AttnExtError, match=r"holds something else .'thesis.tex'"):
        distill(small.settings(tmp_path))
    assert thesis.read_text() == "x"
    with pytest.raises(AttnExtError, match="is a file"):
        distill(small.settings(tmp_path, output={"folder": str(thesis), "progress": False}))
