"""``hf-attn-ext doctor``: the installation, and whether a folder is sound."""

import json

import pytest

from hf_attn_ext.cli.commands import doctor as doctor_module


@pytest.fixture(autouse=True)
def ranges(monkeypatch):
    """The ranges as an installed package states them, whether this one is installed or run from its tree."""
    asked = ["torch>=2.8", "transformers<6,>=5.20", "peft>=0.18", 'pytest>=8; extra == "dev"']
    monkeypatch.setattr(doctor_module, "_requirements", lambda: asked)


def test_a_sound_installation(run):
    done = run("doctor")
    assert done.code == 0 and done.err == "" and done.out.splitlines()[-1] == "all well"
    for part in (
        "python",
        "torch",
        "transformers",
        "supported: ",
        "threads",
        "cuda",
        "native op",
        "flexformer_p",
        "roberta",
    ):
        assert part in done.out


def test_an_unsupported_version_is_named(run, monkeypatch):
    version = doctor_module.version
    monkeypatch.setattr(doctor_module, "version", lambda n: "4.0.0" if n == "transformers" else version(n))
    assert "transformers 4.0.0" in run("doctor").mistake()


def test_a_missing_package_is_named(run, monkeypatch):
    version = doctor_module.version
    monkeypatch.setattr(doctor_module, "version", lambda n: None if n == "peft" else version(n))
    assert "peft is missing" in run("doctor").mistake()


def test_a_converted_folder_is_described(run, converted):
    done = run("doctor", converted)
    assert done.code == 0
    assert "AttnExtRobertaForMaskedLM" in done.out and "flexformer_p, 4 features, layers [0, 1, 2]" in done.out


def test_folders_that_are_not_sound(run, converted, masked_lm, tmp_path):
    assert "base model" in run("doctor", masked_lm).mistake()
    assert "'no-such'" in run("doctor", "no-such").mistake()
    weights = converted / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-100])
    assert "model.safetensors" in run("doctor", converted).mistake()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert "model.safetensors" in run("doctor", converted).mistake()
    weights.write_bytes(content)
    assert run("doctor", converted).code == 0
    config = json.loads((converted / "config.json").read_text())
    config["attn_ext"]["kernel"] = "hedgehgo"
    (converted / "config.json").write_text(json.dumps(config))
    assert "hedgehgo" in run("doctor", converted).mistake()
