"""``hf-attn-ext convert``: what it writes, and every mistake in one line with nothing lost."""

import hashlib
import json
import subprocess
import sys

import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer

import hf_attn_ext as hax
from tests.cli import models


def snapshot(folder):
    return {p.relative_to(folder): hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.rglob("*") if p.is_file()}


def test_the_folder_opens_with_plain_auto_classes_and_keeps_head_and_tokenizer(run, masked_lm, tmp_path):
    out = tmp_path / "deep" / "converted"
    done = run("convert", masked_lm, "--kernel", "hedgehog", "--num-features", 4, "--layers", "0,2", "--out", out)
    assert done.code == 0 and done.err == ""
    assert "2 layers with hedgehog, 4 features" in done.out
    model = AutoModelForMaskedLM.from_pretrained(out)
    assert hax.is_converted(model)
    assert model.config.attn_ext["layers"] == [0, 2]
    assert AutoTokenizer.from_pretrained(out)("the film")["input_ids"] == models.tokenizer()("the film")["input_ids"]
    assert "`masked-lm` with layers 0, 2 of 3 converted" in (out / "README.md").read_text()
    assert sorted(p.name for p in out.parent.iterdir()) == ["converted"], "something temporary was left behind"


def test_converting_gives_the_model_that_the_package_gives(run, masked_lm, tmp_path):
    run("convert", masked_lm, "--num-features", 4, "--seed", 3, "--out", tmp_path / "out")
    ours = hax.convert(AutoModelForMaskedLM.from_pretrained(masked_lm).eval(), num_features=4, seed=3)
    loaded = AutoModelForMaskedLM.from_pretrained(tmp_path / "out").eval()
    words = {"input_ids": torch.tensor([[2, 5, 6, 7, 3]])}
    with torch.no_grad():
        assert torch.equal(loaded(**words).logits, ours(**words).logits)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--kernel", "hedgehg"], ["'hedgehg'", "'hedgehog'"]),
        (["--kernel", "softmax"], ["'softmax'"]),
        (["--num-features", "0"], ["num_features", "0"]),
        (["--num-features", "-3"], ["num_features", "-3"]),
        (["--num-features", "many"], ["--num-features", "'many'"]),
        (["--layers", "0,7"], ["7"]),
        (["--layers", "-1"], ["-1"]),
        (["--layers", "1,1"], ["1, 1"]),
        (["--layers", "first"], ["'first'"]),
        (["--layers", ""], ["''"]),
        (["--seed", "-1"], ["-1"]),
        (["--sed", "1"], ["--sed"]),
    ],
)
def test_bad_options(run, masked_lm, tmp_path, options, said):
    before = snapshot(masked_lm)
    message = run("convert", masked_lm, "--out", tmp_path / "out", *options).mistake()
    for part in said:
        assert part in message
    assert not list(tmp_path.iterdir()), "a failed command left something behind"
    assert snapshot(masked_lm) == before


def test_a_missing_option_is_one_line(run, masked_lm):
    assert "--out" in run("convert", masked_lm).mistake()


def test_a_model_whose_attention_cannot_be_swapped_is_named_with_what_works(run, tmp_path):
    message = run("convert", models.xlnet(tmp_path / "xlnet"), "--out", tmp_path / "out").mistake()
    assert "xlnet" in message.lower() and "roberta" in message
    assert not (tmp_path / "out").exists()


def test_an_untested_model_type_converts_with_a_note(run, tmp_path):
    done = run("convert", models.camembert(tmp_path / "stock"), "--num-features", 4, "--out", tmp_path / "out")
    assert done.code == 0 and "untested" in done.err and "Camembert" in done.err
    assert "note: '" in done.err.splitlines()[-1] and "no tokenizer" in done.err
    code = "from hf_attn_ext_launcher import run; run()"
    words = [sys.executable, "-c", code, "doctor", str(tmp_path / "out")]
    assert subprocess.run(words, capture_output=True, timeout=120).returncode == 0, "a fresh process must open it"


def test_converting_twice(run, converted, tmp_path):
    before = snapshot(converted)
    message = run("convert", converted, "--out", tmp_path / "again").mistake()
    assert "converted already" in message and str(converted) in message
    assert snapshot(converted) == before and not (tmp_path / "again").exists()


@pytest.mark.parametrize("name", ["./no-such-folder", "/no/such/folder", "a/b/c"])
def test_a_model_folder_that_does_not_exist(run, tmp_path, name):
    assert repr(name) in run("convert", name, "--out", tmp_path / "out").mistake()


def test_a_hub_name_that_cannot_be_fetched(run, tmp_path):
    message = run("convert", "somebody/no-such-model", "--out", tmp_path / "out").mistake()
    assert "'somebody/no-such-model'" in message and "hub" in message


def test_a_file_or_a_folder_without_a_model(run, tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    assert "is a file" in run("convert", tmp_path / "file", "--out", tmp_path / "out").mistake()
    assert "config.json is missing" in run("convert", tmp_path / "empty", "--out", tmp_path / "out").mistake()


def test_broken_stock_folders(run, tmp_path):
    folder = models.masked_lm(tmp_path / "model")
    weights = folder / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[: len(content) // 2])
    assert str(folder) in run("convert", folder, "--out", tmp_path / "out").mistake()
    weights.unlink()
    assert str(folder) in run("convert", folder, "--out", tmp_path / "out").mistake()
    (folder / "config.json").write_text("{")
    assert "not valid JSON" in run("convert", folder, "--out", tmp_path / "out").mistake()
    (folder / "config.json").write_text(json.dumps({"model_type": "no_such_type"}))
    assert "no_such_type" in run("convert", folder, "--out", tmp_path / "out").mistake()
    assert not (tmp_path / "out").exists()


class TestOutputFolder:
    """What --out may hold already."""

    @pytest.mark.parametrize("force", [(), ("--force",)])
    def test_something_else_is_never_overwritten(self, run, masked_lm, tmp_path, force):
        out = tmp_path / "out"
        out.mkdir()
        (out / "thesis.tex").write_text("years of work")
        message = run("convert", masked_lm, "--out", out, *force).mistake()
        assert str(out) in message and "'thesis.tex'" in message
        assert (out / "thesis.tex").read_text() == "years of work" and len(list(out.iterdir())) == 1

    @pytest.mark.parametrize("force", [(), ("--force",)])
    def test_the_stock_model_itself_is_never_overwritten(self, run, tmp_path, force):
        stock = models.masked_lm(tmp_path / "stock")
        before = snapshot(stock)
        assert str(stock) in run("convert", stock, "--out", stock, *force).mistake()
        assert snapshot(stock) == before

    def test_an_empty_folder_is_taken(self, run, masked_lm, tmp_path):
        (tmp_path / "out").mkdir()
        assert run("convert", masked_lm, "--num-features", 4, "--out", tmp_path / "out").code == 0

    def test_a_converted_model_is_replaced_only_with_force(self, run, masked_lm, converted):
        before = snapshot(converted)
        again = ("convert", masked_lm, "--num-features", 8, "--out", converted)
        assert "--force" in run(*again).mistake()
        assert snapshot(converted) == before
        assert run(*again, "--force").code == 0
        assert AutoModelForMaskedLM.from_pretrained(converted).config.attn_ext["num_features"] == 8
        assert [p.name for p in converted.parent.iterdir()] == ["converted"]

    def test_force_keeps_a_folder_with_other_files_in_it(self, run, masked_lm, converted):
        (converted / "notes.md").write_text("mine")
        before = snapshot(converted)
        message = run("convert", masked_lm, "--num-features", 8, "--out", converted, "--force").mistake()
        assert "'notes.md'" in message and snapshot(converted) == before

    def test_force_with_a_mistake_keeps_the_old_model(self, run, masked_lm, converted):
        before = snapshot(converted)
        run("convert", masked_lm, "--layers", 9, "--out", converted, "--force").mistake()
        assert snapshot(converted) == before

    def test_a_file(self, run, masked_lm, tmp_path):
        (tmp_path / "out").write_text("x")
        assert "is a file" in run("convert", masked_lm, "--out", tmp_path / "out").mistake()

    def test_a_place_that_cannot_be_written(self, run, masked_lm, tmp_path):
        (tmp_path / "file").write_text("x")
        message = run("convert", masked_lm, "--num-features", 4, "--out", tmp_path / "file" / "out").mistake()
        assert str(tmp_path / "file") in message
