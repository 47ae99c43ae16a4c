"""``hf-attn-ext distill``: a whole small run, and configuration mistakes in one line."""

import pytest
from transformers import AutoModelForSequenceClassification

import hf_attn_ext as hax

WORDS = ("good", "great", "bad", "dull")


@pytest.fixture
def config(classifier, tmp_path):
    rows = [
        f"the film is {word} {rest},{'good' if i % 4 < 2 else 'bad'}"
        for i, (word, rest) in enumerate(
            (WORDS[i % 4], ("story", "plot", "and so", "very")[i // 4 % 4]) for i in range(48)
        )
    ]
    (tmp_path / "reviews.csv").write_text("text,label\n" + "\n".join(rows) + "\n")
    path = tmp_path / "config.yaml"
    path.write_text(
        f"""
model: {{name: {classifier}}}
output: {{folder: {tmp_path / "run"}, progress: false}}
data: {{train: {tmp_path / "reviews.csv"}, validation_fraction: 0.25, max_length: 16}}
kernel: {{num_features: 4}}
stage1: {{steps: 2, batch_size: 4, eval_sequences: 8, calibration_batches: 1}}
stage2: {{steps: 2, batch_size: 4}}
"""
    )
    return path


def test_a_whole_run_leaves_a_model_that_opens_and_whose_card_can_be_written(run, config, tmp_path):
    done = run("distill", "--config", config, "--set", "seed=3")
    assert done.code == 0, done.err
    folder = tmp_path / "run" / "model"
    assert done.out.splitlines()[-2:] == [f"model: {folder}", f"card: {folder / 'README.md'}"]
    assert "after stage 2" in done.out
    assert hax.is_converted(AutoModelForSequenceClassification.from_pretrained(folder))
    card = (folder / "README.md").read_text()
    assert run("card", folder).code == 0 and (folder / "README.md").read_text() == card
    assert "after stage 2" in card and "output error" in card
    assert run("push", folder, "me/it", "--dry-run").code == 0


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("stage1.lrr=0.1", ["stage1.lrr", "'lr'"]),
        ("stage1.steps=many", ["stage1.steps", "'many'"]),
        ("stage1.batch_size=0", ["stage1.batch_size", "0"]),
        ("kernel.kernel=hedgehg", ["'hedgehg'", "'hedgehog'"]),
        ("kernel.num_features=0", ["num_features", "0"]),
        ("kernel.layers=[9]", ["9"]),
        ("stagee1.steps=1", ["stagee1", "stage1"]),
        ("nonsense", ["'nonsense'"]),
        ("data.train=no-such.csv", ["no-such.csv"]),
        ("data.label_column=lable", ["'lable'"]),
        ("model.name=./no-such", ["./no-such"]),
    ],
)
def test_bad_settings_are_one_line(run, config, tmp_path, setting, said):
    message = run("distill", "--config", config, "--set", setting).mistake()
    for part in said:
        assert part in message


def test_a_missing_file_and_bad_yaml(run, tmp_path):
    assert "no-such.yaml" in run("distill", "--config", tmp_path / "no-such.yaml").mistake()
    (tmp_path / "bad.yaml").write_text("model: [")
    assert "bad.yaml" in run("distill", "--config", tmp_path / "bad.yaml").mistake()


def test_an_output_folder_that_holds_something_else(run, config, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").write_text("years of work")
    assert "thesis.tex" in run("distill", "--config", config).mistake()
    assert (tmp_path / "run" / "thesis.tex").read_text() == "years of work"


def test_labels_that_do_not_match_the_teachers(run, config, tmp_path):
    (tmp_path / "reviews.csv").write_text("text,label\n" + "the film,happy\na plot,sad\n" * 20)
    message = run("distill", "--config", config).mistake()
    assert "happy" in message or "sad" in message
