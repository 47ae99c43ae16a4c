"""The examples run at small size through their own ``main``, and say in one line what is wrong."""

import json
import re

import pytest

from examples import hybrid_layers, lora


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
        (["--keep", "2"], "keep must lie between 1 and 1, for a model of 2 layers that can be converted, got 2"),
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
