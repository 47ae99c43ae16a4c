"""The smaller studies, run at small size through their own ``main``."""

import csv
import json

import pytest

from benchmarks import ROOT
from benchmarks.studies import compare_kernels, hasse_pages, order_pages, prune_heads
from benchmarks.studies.choose_layers import __main__ as choose_layers
from benchmarks.studies.common import corpora
from hf_attn_ext.probe import pruning_scores
from tests.training import small, small_gpt


@pytest.fixture
def small_comparison(tiny_assets):
    """Run ``compare_kernels`` at a fiftieth of its size, with the given further arguments."""

    def run(*arguments):
        small = ["--lengths", "128", "--scale", "0.02", "--precision", "no", "--out", "compared"]
        return compare_kernels.main([*small, *arguments])

    return run


def test_compare_kernels(small_comparison, tmp_path, capsys):
    assert small_comparison("--seeds", "0,1", "--kernels", "performer,hedgehog") == 0
    printed = capsys.readouterr().out
    report = json.loads((tmp_path / "compared" / "comparison.json").read_text())["128"]
    assert set(report["kernels"]) == {"performer", "hedgehog"}
    for row in report["kernels"].values():
        assert row["feature_dim"] == 128 and len(row["runs"]) == 2
    assert "performer against hedgehog" in printed and "| hedgehog | 128 |" in printed
    assert (tmp_path / "compared" / "comparison.png").stat().st_size > 1000
    pages = tmp_path / "compared" / "128" / "pages"
    lines = [(pages / f"{name}.csv").read_text().splitlines(keepends=True) for name in ("train", "test")]
    films = [{row["movie"] for row in csv.DictReader(split)} for split in lines]
    assert all(films) and films[0].isdisjoint(films[1])


@pytest.mark.parametrize(("option", "value"), [("--kernels", "hedghog"), ("--lengths", "100")])
def test_compare_kernels_names_what_it_does_not_know(small_comparison, capsys, option, value):
    assert small_comparison(option, value) == 2
    assert value in capsys.readouterr().err


def test_hasse_pages(tmp_path, capsys):
    assert hasse_pages.main(["--out", str(tmp_path / "docs"), "--tokens", "4"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 and all(line.endswith("minimal, equal to the closed form") for line in lines)
    assert not any("NOT" in line for line in lines)
    names = {path.name for path in (tmp_path / "docs").iterdir()}
    cases = ("causal", "block-two-stream", "butterfly")
    assert names == {f"hasse-{c}{end}.png" for c in cases for end in ("", "-tasks")} | {"hasse-butterfly-window.png"}
    assert hasse_pages.main(["--tokens", "1"]) == 2
    assert "--tokens must be at least 2" in capsys.readouterr().err


def test_order_pages(tmp_path, capsys):
    assert order_pages.main(["--out", str(tmp_path / "docs")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and all(line.endswith("2 chains, equal to the dense form") for line in lines)
    for name in ("order-butterfly.png", "order-classes.png"):  # the page's pictures are what the command makes
        assert (tmp_path / "docs" / name).read_bytes()[:4] == (ROOT / "docs" / "evidence" / name).read_bytes()[:4]
    assert len(list((tmp_path / "docs").iterdir())) == 2
    (tmp_path / "file").write_text("mine")
    assert order_pages.main(["--out", str(tmp_path / "file")]) == 2
    assert "is a file" in capsys.readouterr().err


def test_choose_layers(tiny_assets, tmp_path, capsys):
    arguments = ["--out", str(tmp_path / "out"), "--keep", "1", "--steps", "2", "--num-features", "4", "--texts", "8"]
    assert choose_layers.main([*arguments, "--test", "6", "--seeds", "0,1"]) == 0
    printed = capsys.readouterr().out
    report = json.loads((tmp_path / "out" / "results.json").read_text())
    rows, heads = report["rows"], report["heads"]
    assert [(row["seed"], row["layer"]) for row in heads] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert all(-1 <= row["lowest"] <= row["score"] <= 1 for row in heads)
    assert (tmp_path / "out" / "reviews-1" / "heads-6.png").is_file() and "| rank correlation |" in printed
    assert [row["seed"] for row in rows] == [0, 1] and "| reviews | 1 |" in printed
    for row in rows:
        assert row["choices"] == 2 and row["error"] == sorted(row["all"])[row["rank"] - 1]
        assert row["best"] <= row["random"] <= row["worst"] and {row["first"], row["last"]} == set(row["all"])
    assert (tmp_path / "out" / "results.png").stat().st_size > 5000
    (tmp_path / "out" / "reviews-0" / "errors-6.json").write_text('{"": 9.0, "0": 2.0, "1": 1.0}')  # kept as they came
    assert choose_layers.main([*arguments, "--test", "6", "--seeds", "0,1"]) == 0
    assert json.loads((tmp_path / "out" / "results.json").read_text())["rows"][0]["all"] == [1.0, 2.0]
    for wrong, message in (
        (["--keep", "2"], "--keep takes numbers from 1 to 1"),
        (["--corpora", "review"], "Did you mean 'reviews'?"),
        (["--draws", "0"], "--draws must be at least 1"),
        (["--keep", "1,b"], "--keep takes whole numbers with commas, got 'b'"),
        (["--seeds", "a"], "--seeds takes whole numbers with commas, got 'a'"),
    ):
        assert choose_layers.main([*arguments, "--test", "6", *wrong]) == 2
        assert message in capsys.readouterr().err


@pytest.fixture
def tiny_reactions(tiny_assets):
    """A model of three layers and lines of molecules under the names of the second model's; return the lines."""
    small.save_model(tiny_assets / "rxnfp", max_position_embeddings=140, num_hidden_layers=3)
    texts = [row["text"] for row in small.rows(180, seed=5)]
    lines = [f"{a}.{b}>>{c} {i}" for i, (a, b, c) in enumerate(zip(texts[::3], texts[1::3], texts[2::3], strict=True))]
    (tiny_assets / "rxnfp" / "reactions.txt").write_text("".join(f"{line}\n" for line in lines))
    return lines


@pytest.mark.parametrize("example", [choose_layers, prune_heads])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "rxnf"], "unknown model 'rxnf'. Did you mean 'rxnfp'? There are: minilm, rxnfp, mgm"),
        (
            ["--model", "rxnfp", "--corpora", "reviews"],
            "corpus 'reviews' is not for --model rxnfp, which reads reactions",
        ),
        (
            ["--corpora", "speeches,reactions"],
            "corpus 'reactions' is not for --model minilm, which reads reviews, speeches",
        ),
    ],
)
def test_models_have_their_corpora(tiny_assets, capsys, example, arguments, message):
    assert example.main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and message in error and error.count("\n") == 1


def test_choose_layers_of_the_second_model(tiny_reactions, tmp_path, capsys):
    arguments = [
        "--model",
        "rxnfp",
        "--keep",
        "1,2",
        "--steps",
        "2",
        "--num-features",
        "4",
        "--texts",
        "8",
        "--test",
        "4",
    ]
    arguments += ["--seeds", "0", "--choices", "2", "--draws", "3", "--out", str(tmp_path / "out")]
    assert choose_layers.main(arguments) == 0
    assert "of 3 |" in (printed := capsys.readouterr().out) and "| reactions | 0 |" in printed
    report = json.loads((tmp_path / "out" / "results.json").read_text())
    assert [row["layer"] for row in report["heads"]] == [0, 1, 2] and report["settings"]["model"] == "rxnfp"
    errors = json.loads((tmp_path / "out" / "reactions-0" / "errors-4.json").read_text())
    for row in report["rows"]:
        assert row["there_are"] == 3 and len(row["all"]) == 2 and row["choices"] in (2, 3)
        assert row["error"] == errors[",".join(map(str, row["suggested"]))]
        assert row["rank"] == 1 + sum(error < row["error"] for error in row["all"])
    stage1 = json.loads((tmp_path / "out" / "reactions-0" / "stage1" / "results.json").read_text())
    assert stage1["config"]["model"]["name"].endswith("rxnfp")
    parts = [(tmp_path / "out" / "reactions" / f"{name}.txt").read_text() for name in ("train", "validation", "test")]
    assert "".join(parts).splitlines() == tiny_reactions and [part.count("\n") for part in parts] == [48, 6, 6]
    assert choose_layers.main([*arguments, "--choices", "0"]) == 2
    assert "--choices must be at least 1, got 0" in capsys.readouterr().err


def test_choose_layers_of_a_decoder(tiny_assets, tmp_path, monkeypatch, capsys):
    sizes = {"vocab_size": 24, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 3}
    small_gpt.save_model(tiny_assets / "mgm", n_positions=140, **sizes)
    small_gpt.save_tokenizer(tiny_assets / "mgm", bos_token="<bos>", eos_token="<eos>", pad_token="<pad>")
    monkeypatch.setattr(corpora, "WRITTEN", 48)
    arguments = ["--keep", "1", "--steps", "2", "--num-features", "4", "--texts", "8", "--test", "4", "--seeds", "0"]
    arguments += ["--model", "mgm", "--draws", "3", "--out", str(tmp_path / "out")]
    assert choose_layers.main(arguments) == 0
    assert "| samples | 0 |" in capsys.readouterr().out
    row = json.loads((tmp_path / "out" / "results.json").read_text())["rows"][0]
    assert {row["first"], row["last"]} == set(row["all"]) and row["none_kept"] > 0
    found = json.loads((tmp_path / "out" / "samples-0" / "suggested-1-8.json").read_text())
    assert found["settings"]["criterion"] == "error" and found["settings"]["steps"] > 0
    assert prune_heads.main(["--model", "mgm", "--out", str(tmp_path / "out")]) == 2
    assert "samples have no sentences or segments" in capsys.readouterr().err


def test_prune_heads_of_the_second_model(tiny_reactions, tmp_path, capsys, monkeypatch):
    scored = []
    monkeypatch.setattr(
        prune_heads, "pruning_scores", lambda *given, **how: scored.append(pruning_scores(*given, **how)) or scored[-1]
    )
    arguments = ["--model", "rxnfp", "--draws", "2", "--texts", "8", "--test", "4", "--out", str(tmp_path / "out")]
    assert prune_heads.main(arguments) == 0
    assert "| reactions | their mean |" in capsys.readouterr().out
    model, tokenizer = prune_heads.opened("reactions")
    plain = pruning_scores(model, tokenizer, tiny_reactions)
    assert (plain.signal == 1).all()  # a reaction is one sentence
    assert (scored[0].signal < 1).all()  # and some molecules


def test_prune_heads(tiny_assets, tmp_path, capsys):
    arguments = ["--corpora", "reviews", "--draws", "2", "--texts", "8", "--test", "6", "--out", str(tmp_path / "out")]
    assert prune_heads.main(arguments) == 0
    rows = json.loads((tmp_path / "out" / "results.json").read_text())["rows"]
    assert [row["mode"] for row in rows] == ["zero"] * 3 + ["mean"] * 3
    for row in rows:
        assert all(row[name] > 0 for name in (*prune_heads.LABELS, "random")) and row["best"] <= row["random"]
    assert "| reviews | their mean |" in capsys.readouterr().out
    assert (tmp_path / "out" / "results.png").stat().st_size > 5000
    for wrong, message in (
        (["--shares", "2"], "between 0 and 1"),
        (["--shares", "0.1,x"], "--shares takes numbers between 0 and 1 with commas, got '0.1,x'"),
        (["--corpora", "speech"], "Did you mean 'speeches'?"),
    ):
        assert prune_heads.main([*arguments, *wrong]) == 2
        assert message in capsys.readouterr().err
