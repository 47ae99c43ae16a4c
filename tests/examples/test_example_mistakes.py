"""The examples say in one line what is wrong, and exit with code 2."""

import pytest

from examples import hybrid_layers, peft_lora


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--keep", "2"], "keep must lie between 1 and 1, for a model of 2 layers that can be converted, got 2"),
        (["--kernel", "hegdehog", "--keep", "1"], "unknown kernel 'hegdehog'. Did you mean 'hedgehog'?"),
        (["--count", "1"], "1 texts are too few"),
    ],
)
def test_hybrid_layers(tiny_assets, capsys, arguments, message):
    assert hybrid_layers.main(arguments) == 2
    assert message in capsys.readouterr().err


def test_peft_lora(tiny_assets, tmp_path, capsys):
    (tmp_path / "bad.csv").write_text("text,stars\na,1\n")
    assert peft_lora.main(["--data", str(tmp_path / "bad.csv")]) == 2
    assert "lacks the column 'label'" in capsys.readouterr().err
