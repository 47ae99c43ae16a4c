"""The examples run at small size through their own ``main``, and say in one line what is wrong."""

import json
import re

import pytest

from benchmarks import ROOT
from examples import (
    block_generation,
    convert_encoder,
    derive_mask,
    distil_decoder,
    hybrid_layers,
    lora,
    probe_corpus,
    train_under_mask,
)

SCRIPTS = sorted((ROOT / "examples").glob("*.py"))


def test_examples_are_few_and_short():
    assert len(SCRIPTS) <= 8
    assert {path.name: lines for path in SCRIPTS if (lines := path.read_text().count("\n")) > 120} == {}


def test_examples_import_public_names_alone():
    """A private module of the package has no place in an example."""
    rooms = r"attention|hasse|training|inference|probe|hub"
    for path in SCRIPTS:
        for module in re.findall(r"^\s*(?:from|import) (hf_attn_ext[\w.]*)", path.read_text(), re.MULTILINE):
            assert re.fullmatch(rf"hf_attn_ext(\.({rooms}))?", module), (path.name, module)
        assert "benchmarks" not in re.findall(r"^(?:from|import) (\w+)", path.read_text(), re.MULTILINE)


def test_convert_encoder(tiny_assets, capsys):
    convert_encoder.main(["--count", "16", "--num-features", "4", "--out", "converted"])
    printed = capsys.readouterr().out
    assert "2 layers with flexformer_p" in printed and printed.count("largest difference 0.0") == 2


def test_distil_decoder(tiny_texts, tmp_path, capsys):
    distil_decoder.main(["--samples", "16", "--steps", "2", "--num-features", "4", "--out", "distilled"])
    printed = capsys.readouterr().out
    assert "after stage 1" in printed and "it writes: " in printed
    assert (tmp_path / "distilled" / "samples" / "train.jsonl").is_file()


def test_block_generation(tiny_texts, capsys):
    block_generation.main(["--samples", "12", "--steps", "2", "--new-tokens", "8"])
    printed = capsys.readouterr().out
    assert "one per pass" in printed and "4 per pass" in printed and "step 0: " in printed


def test_train_under_mask(tiny_assets, tmp_path, capsys):
    train_under_mask.main(["--steps", "2", "--batch-size", "4", "--max-length", "12", "--out", "trained"])
    printed = capsys.readouterr().out
    assert "held-out loss, nats per token" in printed and "in one pass" in printed
    assert (tmp_path / "trained" / "model" / "config.json").is_file()


def test_derive_mask(tiny_texts, capsys):
    derive_mask.main([])
    printed = capsys.readouterr().out
    assert "4 tasks with 10 positions need 7 together" in printed and "every task is in it: True" in printed
    assert "GPT2LMHeadModel attends by it: logits (1, 7, " in printed


def test_probe_corpus(tiny_assets, tmp_path, capsys):
    probe_corpus.main(["--count", "12", "--out", "probed"])
    assert "within_sentence: highest in layer " in capsys.readouterr().out
    assert (tmp_path / "probed" / "report.html").stat().st_size > 10_000


def test_lora(tiny_assets, tmp_path, capsys):
    arguments = ["--out", str(tmp_path / "out"), "--steps", "3", "--num-features", "4", "--batch-size", "4"]
    assert lora.main([*arguments, "--max-length", "16", "--rank", "2"]) == 0
    assert "largest difference 0.0" in capsys.readouterr().out
    assert {"base", "adapter"} <= {path.name for path in (tmp_path / "out").iterdir()}


def test_hybrid_layers(tiny_assets, tmp_path, capsys):
    arguments = ["--out", str(tmp_path / "out"), "--num-features", "4", "--keep", "1", "--count", "24"]
    assert hybrid_layers.main([*arguments, "--max-length", "16"]) == 0
    printed = capsys.readouterr().out
    assert "largest difference 0.0" in printed
    layers = json.loads((tmp_path / "out" / "config.json").read_text())["attn_ext"]["layers"]
    assert len(layers) == 1
    kept = re.search(r"softmax kept in \[(\d)\]", printed)
    assert int(kept.group(1)) == 1 - layers[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--keep", "2"], "keep must be between 1 and 1 for a model with 2 layers that can be converted, got 2"),
        (["--kernel", "hegdehog", "--keep", "1"], "unknown kernel 'hegdehog'. Did you mean 'hedgehog'?"),
        (["--count", "1"], "1 texts are too few"),
    ],
)
def test_mistakes_of_hybrid_layers(tiny_assets, capsys, arguments, message):
    assert hybrid_layers.main(arguments) == 2
    assert message in capsys.readouterr().err


def test_a_mistake_of_lora(tiny_assets, tmp_path, capsys):
    (tmp_path / "bad.csv").write_text("text,stars\na,1\n")
    assert lora.main(["--data", str(tmp_path / "bad.csv")]) == 2
    assert "lacks the column 'label'" in capsys.readouterr().err
