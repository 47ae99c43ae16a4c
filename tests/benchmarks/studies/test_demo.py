"""The main job at small size: all steps, the fresh process, the table and the card, in seconds."""

import json
import re

import numpy as np
import pytest
from transformers import AutoModelForSequenceClassification

from benchmarks.studies.demo import encoder as demo
from hf_attn_ext.integration import is_converted
from tests.training import small

STAGES = ("teacher", "stage1", "stage2")
FEW_STEPS = [f"--set={stage}.{field}=3" for stage in STAGES for field in ("steps", "evaluate_every")]


def test_every_step_is_measured_and_the_fresh_process_has_the_same_bits(tiny_assets, tmp_path, capsys):
    out = tmp_path / "runs" / "demo"
    arguments = ["--out", str(out), "--num-features", "4", *FEW_STEPS]
    assert demo.main(arguments) == 0
    printed = capsys.readouterr().out
    for row in ("teacher", "control", "converted, untrained", "after stage 1", "after stage 2"):
        assert row in printed, printed
    assert re.search(r"gap closed: -?[\d.]+% ± [\d.]+%", printed)
    assert re.search(r"fresh process: \d+ weights and buffers compared, all equal bit for bit", printed)
    assert re.search(r"fresh process: \d+ logits compared, largest difference 0.0, tolerance 1.\de-04", printed)
    assert str(out / "model") in printed
    assert re.search(r"wall time: \d+ min \d+ s   peak memory: \d+\.\d+ GiB", printed)

    model = AutoModelForSequenceClassification.from_pretrained(out / "model")
    assert is_converted(model)
    results = json.loads((out / "results.json").read_text())
    card = (out / "model" / "README.md").read_text()
    assert f"{results['scores']['stage2']['pearson']:.4f}" in card
    assert "flexformer_p" in card and str(tmp_path) not in card

    # Run again: the finished run is read, not run.
    journal = (out / "metrics.jsonl").read_bytes()
    assert demo.main(arguments) == 0
    assert (out / "metrics.jsonl").read_bytes() == journal
    assert capsys.readouterr().out.split("fresh process")[0] == printed.split("fresh process")[0]

    # A fresh process with other logits fails the demo.
    logits = np.load(out / "logits" / "stage2.npy")
    np.save(out / "logits" / "stage2.npy", logits + 3e-3)
    assert demo.main(arguments) == 1
    assert (
        "error: the model that a fresh process opened is not that of the run: logits differ" in capsys.readouterr().err
    )


def test_another_model_and_a_classification_task_from_folders(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    small.save_model(tmp_path / "mine")
    for seed, (name, count) in enumerate((("train", 64), ("validation", 32), ("test", 40))):
        small.save_csv(tmp_path / "texts" / f"{name}.csv", small.rows(count, seed=seed))
    settings = ["--model", "./mine", "--data", "./texts", "--kernel", "hedgehog", "--num-features", "4", "--seed", "3"]
    assert demo.main([*settings, "--set=data.max_length=16", *FEW_STEPS]) == 0
    printed = capsys.readouterr().out
    assert "accuracy" in printed and "hedgehog" in printed
    assert (tmp_path / "runs" / "demo-mine-texts-hedgehog-3" / "model" / "README.md").is_file()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--kernel", "flexformer_d"], "flexformer_d"),
        (["--num-features", "0"], "0"),
        (["--data", "./nowhere"], "nowhere"),
        (["--model", "./nowhere"], "nowhere"),
        (["--set", "stage1.stepps=3"], "stepps"),
        (["--set", "stage1.steps"], "stage1.steps"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(tiny_assets, capsys, arguments, named):
    assert demo.main([*FEW_STEPS, *arguments]) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("[distill]")]
    assert len(lines) == 1 and lines[0].startswith("error: ") and named in lines[0]
