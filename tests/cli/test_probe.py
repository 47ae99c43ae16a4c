"""``hf-attn-ext probe``: everything is written, two processes have the numbers of one, mistakes are one line."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hf_attn_ext.probe import ProbeStatistics
from tests.cli import models

ROOT = Path(__file__).parents[2]
TEXTS = ["the film is good . a dull story is not so great", "the plot and story and plot . very bad"] * 4


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return path


def test_a_run_writes_everything_and_runs_once(run, masked_lm, texts, tmp_path):
    other = tmp_path / "more.txt"
    other.write_text("a great film\n")
    words = ["probe", masked_lm, "--texts", texts, other, "--out", tmp_path / "out", "--sample", 1, "--browse", 1]
    done = run(*words, "--layers", "0,*.layer.2.*", "--percents", 5, "--set", "bootstrap=4")
    assert done.code == 0, done.err
    out = tmp_path / "out"
    names = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    expected = {"probe.json", "report.html", "statistics.json", "statistics.parquet", "state/0-of-1.npz"}
    assert expected | {"figures/map-distance.png", "figures/curve-distance.svg"} <= names
    assert not [name for name in names if name.endswith(".tmp")]
    statistics = ProbeStatistics.from_json(out / "statistics.json")
    assert statistics.counts["texts"] == 9 and statistics.settings["layers"] == [0, 2]
    page = (out / "report.html").read_text()
    assert "9 texts" in done.out and "report.html" in done.out and not re.search(r"https?://", page)
    assert f"hf-attn-ext probe {masked_lm}" in page
    before = (out / "statistics.json").read_bytes()
    refused = run(*words, "--layers", "0,*.layer.2.*", "--percents", 5, "--set", "bootstrap=4", "--seed", 1)
    assert "seed was 0, is now 1" in refused.mistake() and (out / "statistics.json").read_bytes() == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--layers", "9"], "no layer matches 9"),
        (["--heads", "x"], "--heads must be numbers with commas, got 'x'"),
        (["--max-length", "8"], "texts.jsonl, line 1: a text of"),
        (["--set", "max_lenght=8"], "unknown field 'max_lenght'. Did you mean 'max_length'?"),
        (["--projections", "*.none"], "no module matches '*.none'"),
        (["--num-heads", "2"], "num_heads (2) is of projections"),
        (["--tokens", "9", "--words", "3"], "by words (3) or by tokens (9), not both"),
        (["--batch-size", "0"], "batch_size must be a whole number of at least 1"),
        (["--set", "processes=2"], "asks for 2 processes"),
        (["--config", "none.yaml"], "'none.yaml' does not exist"),
    ],
)
def test_mistakes_are_one_line(run, masked_lm, texts, tmp_path, words, said):
    outcome = run("probe", masked_lm, "--texts", texts, "--out", tmp_path / "out", *words)
    assert said in outcome.mistake() and not (tmp_path / "out").exists()


def test_mistakes_of_files_and_models(run, masked_lm, texts, tmp_path):
    (tmp_path / "empty.txt").write_text("\n")
    out = tmp_path / "out"
    assert "holds no text" in run("probe", masked_lm, "--texts", tmp_path / "empty.txt", "--out", out).mistake()
    assert "--texts FILE is missing" in run("probe", masked_lm, "--out", out).mistake()
    assert "--out DIR is missing" in run("probe", masked_lm, "--texts", texts).mistake()
    assert "no model folder" in run("probe", "./none", "--texts", texts, "--out", out).mistake()
    bare = models.masked_lm(tmp_path / "bare", with_tokenizer=False)
    assert "has no tokenizer" in run("probe", bare, "--texts", texts, "--out", out).mistake()
    models.tokenizer().save_pretrained(models.xlnet(tmp_path / "xlnet"))
    assert "attention interface" in run("probe", tmp_path / "xlnet", "--texts", texts, "--out", out).mistake()
    assert not out.exists()


def test_two_processes_have_the_numbers_of_one(run, masked_lm, texts, tmp_path):
    arguments = ["probe", masked_lm, "--texts", texts, "--sample", 1, "--browse", 0, "--set", "bootstrap=4"]
    one, two = tmp_path / "one", tmp_path / "two"
    assert run(*arguments, "--out", one).code == 0
    variables = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "LOCAL_RANK")}
    variables |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true", "MPLBACKEND": "Agg"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    command += ["-m", "hf_attn_ext.cli", *map(str, arguments), "--set", "processes=2", "--out", str(two)]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("report: ") == 1
    assert {path.name for path in (two / "state").iterdir()} == {"0-of-2.npz", "1-of-2.npz"}
    found = [ProbeStatistics.from_json(folder / "statistics.json") for folder in (one, two)]
    for a, b in zip(found[0].statistics, found[1].statistics, strict=True):
        assert np.allclose(a.values, b.values, rtol=1e-9, equal_nan=True) and a.texts == b.texts
        assert np.allclose(a.interval, b.interval, rtol=1e-9, equal_nan=True)
