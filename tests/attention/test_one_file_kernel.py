"""A kernel is one class in one file; from there it reaches lists, the command line, folders, tests and cards."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification

import hf_attn_ext as hax
from hf_attn_ext.attention import registry
from hf_attn_ext.cli.main import main
from tests.cli import models
from tests.training import small

TOY = '''
import torch
from torch import nn

from hf_attn_ext.attention import FeatureMap, Features, register_kernel


@register_kernel("toy")
class Toy(FeatureMap):
    """Even powers of random projections: ``phi(x) = (w_i . x)^power``."""

    test_options = {"": {}, "-quartic": {"power": 4}}

    def __init__(self, num_heads, head_dim, num_features, seed=0, power: int = 2):
        super().__init__(num_heads, head_dim, num_features, feature_dim=num_features)
        generator = torch.Generator().manual_seed(seed)
        self.weight = nn.Parameter(torch.randn(num_heads, num_features, head_dim, generator=generator))
        self.power = power

    def forward(self, x, side):
        return Features(None, (x @ self.weight.to(x.dtype).mT) ** self.power)
'''
CONVERT = ("convert", "model", "--out", "out")
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """The folder of toy_kernel.py, which is the working folder; the kernel is forgotten afterwards."""
    (tmp_path / "toy_kernel.py").write_text(TOY)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    registry._KERNELS.pop("toy", None)
    sys.modules.pop("toy_kernel", None)


def in_a_fresh_process(*words, folder):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(folder)])}
    return subprocess.run([sys.executable, *words], cwd=ROOT, env=environment, capture_output=True, text=True)


def test_it_is_listed(toy, capsys):
    assert "toy" not in hax.list_kernels()
    assert main(["--import", "toy_kernel", "list", "kernels"]) == 0
    assert "toy" in capsys.readouterr().out.split() and "toy" in hax.list_kernels()


def test_the_command_line_converts_with_its_option_and_a_fresh_process_opens_the_folder(toy, capsys):
    model = models.masked_lm(toy / "stock")
    words = ["--kernel", "toy", "--num-features", "3", "--option", "power=4", "--out", "out"]
    assert main(["--import", "toy_kernel", "convert", str(model), *words]) == 0, capsys.readouterr().err
    converted = AutoModelForMaskedLM.from_pretrained("out").eval()
    assert converted.config.attn_ext["kernel_options"] == {"power": 4}
    assert all(layer.feature_map.power == 4 for layer in hax.converted_layers(converted))
    assert "kernel `toy`" in Path("out/README.md").read_text() and "'power': 4" in Path("out/README.md").read_text()
    with torch.no_grad():
        torch.save(converted(torch.arange(5)[None]).logits, "logits.pt")
    script = (
        "import sys, torch, toy_kernel; from transformers import AutoModelForMaskedLM\n"
        "model = AutoModelForMaskedLM.from_pretrained(sys.argv[1]).eval()\n"
        "print(torch.equal(model(torch.arange(5)[None]).logits, torch.load(sys.argv[2])))"
    )
    done = in_a_fresh_process("-c", script, str(toy / "out"), str(toy / "logits.pt"), folder=toy)
    assert done.stdout.strip() == "True", done.stderr
    without = script.replace(", toy_kernel;", ", hf_attn_ext;")
    done = in_a_fresh_process("-c", without, str(toy / "out"), str(toy / "logits.pt"), folder=toy)
    assert "unknown kernel 'toy'" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--import", "no_such_module", *CONVERT], ["--import", "'no_such_module'"]),
        (["--import", "toy_kernel", *CONVERT, "--kernel", "toy", "--option", "power=x"], ["'power'", "whole", "'x'"]),
        (["--import", "toy_kernel", *CONVERT, "--kernel", "toy", "--option", "pow=2"], ["Did you mean 'power'?"]),
        ([*CONVERT, "--option", "spread"], ["--option needs NAME=VALUE", "'spread'"]),
    ],
)
def test_mistakes_are_named(toy, capsys, words, said):
    assert main(words) == 2
    message = capsys.readouterr().err
    assert all(part in message for part in said), message


def test_the_shared_tests_run_it(toy):
    """In a process of their own, whose table of kernels is made after the import."""
    words = ["-m", "pytest", "-v", "-p", "toy_kernel", "-p", "no:cacheprovider", "-k", "toy"]
    done = in_a_fresh_process(*words, "tests/attention/feature_maps/test_feature_maps.py", folder=toy)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "test_gram_matrix_is_positive_semidefinite[toy] PASSED" in done.stdout
    assert "test_gradients_reach_every_parameter[toy-quartic] PASSED" in done.stdout


def test_it_is_distilled_and_its_card_names_it(toy, capsys):
    small.prepare(toy)
    settings = small.settings(toy, kernel={"kernel": "toy", "num_features": 3, "kernel_options": {"power": 4}})
    for section in ("teacher", "stage1", "stage2"):
        settings[section] |= {"steps": 2, "evaluate_every": 2}
    (toy / "run.yaml").write_text(str(settings))
    assert main(["--import", "toy_kernel", "distill", "--config", "run.yaml"]) == 0, capsys.readouterr().err
    model = AutoModelForSequenceClassification.from_pretrained(toy / "run" / "model")
    assert model.config.attn_ext["kernel"] == "toy"
    card = (toy / "run" / "model" / "README.md").read_text()
    assert "kernel `toy`, 3 features" in card and "'power': 4" in card
