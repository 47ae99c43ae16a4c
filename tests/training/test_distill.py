"""Whole small runs: what they measure and leave behind, and the mistakes they refuse."""

import io
import json

import numpy as np
import pytest
import torch
from accelerate.state import AcceleratorState
from accelerate.tracking import GeneralTracker
from rich.console import Console
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer, RobertaModel, XLNetConfig, XLNetModel

import hf_attn_ext.integration  # noqa: F401
from hf_attn_ext import AttnExtError
from hf_attn_ext.training import distill, launch, results_table
from hf_attn_ext.training.config import DistillConfig
from tests.training import small

SHORT = {"steps": 2, "batch_size": 8, "evaluate_every": 1}


def short(root, name="run", **sections):
    stages = dict.fromkeys(("teacher", "stage1", "stage2"), SHORT)
    return small.settings(root, name, **{**stages, **sections})


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return small.prepare(tmp_path_factory.mktemp("distill"))


def test_a_run_from_a_bare_model_to_a_converted_classifier(tmp_path):
    small.prepare(tmp_path)
    longer = {"steps": 60, "batch_size": 16, "evaluate_every": 15, "lr": 5e-3}
    values = small.settings(
        tmp_path,
        control=True,
        teacher=longer,
        stage1={**longer, "lr": 2e-2},
        stage2={**longer, "steps": 30, "lr": 2e-3, "distillation": 0.5, "feature_map_lr": 1e-3},
    )
    result = distill(values)
    scores = result.results["scores"]
    assert list(scores) == ["teacher", "control", "converted", "stage1", "stage2"]
    assert scores["teacher"]["accuracy"] > 0.8 and scores["stage2"]["accuracy"] > 0.8
    transfer = result.results["transfer"]
    assert transfer["stage1"]["kl"] < 0.5 * transfer["converted"]["kl"]
    assert set(result.results["standard_errors"]["stage2"]) == {"accuracy", "f1", "matthews"}
    assert result.results["data"]["split"] == "test" and result.results["data"]["labels"] == ["bad", "good"]
    assert {"gap", "gap_closed", "gap_standard_error", "gap_is_clear"} <= set(result.results)
    assert result.results["versions"]["torch"] == torch.__version__
    assert DistillConfig.from_dict(result.results["config"]).control

    model = AutoModelForSequenceClassification.from_pretrained(result.model_folder).eval()
    assert model.config.id2label == {0: "bad", 1: "good"}
    tokenizer = AutoTokenizer.from_pretrained(result.model_folder)
    rows = small.rows(30, seed=2)
    with torch.no_grad():
        logits = model(**tokenizer([row["text"] for row in rows], padding=True, return_tensors="pt")).logits
    # tokens beyond max_length were cut in the run; these texts are shorter
    np.testing.assert_allclose(logits, np.load(result.folder / "logits" / "stage2.npy"), atol=1e-5)
    assert json.loads((result.model_folder / "results.json").read_text()) == result.results

    console = Console(width=160, record=True, quiet=False)
    console.print(results_table(result.results))
    shown = console.export_text()
    assert "after stage 2" in shown and "control (no attention)" in shown and "gap" in shown


def test_every_stage_writes_jsonl_and_ends_with_its_best(root):
    values = short(root, "jsonl", stage2={"steps": 12, "batch_size": 8, "evaluate_every": 1, "lr": 0.3})
    result = distill(values)
    records = [json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()]
    for stage in ("teacher", "stage1", "stage2"):
        kinds = {record["kind"] for record in records if record["stage"] == stage}
        assert kinds == {"train", "eval", "final"}
    evals = {r["step"]: r for r in records if r["stage"] == "stage2" and r["kind"] == "eval"}
    final = next(r for r in records if r["stage"] == "stage2" and r["kind"] == "final")
    assert len(evals) == 12
    best = max(evals.values(), key=lambda record: (record["accuracy"], -record["step"]))
    assert final["best_step"] == best["step"] < 12, "the learning rate should ruin the model again"
    assert final["loss"] == pytest.approx(best["loss"], rel=1e-5)
    assert result.results["validation"]["stage2"]["accuracy"] == best["accuracy"]


class Notebook(GeneralTracker):
    """A tracker of the user's own."""

    name, requires_logging_directory = "notebook", False

    def __init__(self):
        super().__init__()
        self.lines, self.settings = [], None

    @property
    def tracker(self):
        return self

    def store_init_configuration(self, values):
        self.settings = values

    def log(self, values, step=None, **_):
        self.lines.append((step, values))


def test_trackers_get_the_same_numbers_on_one_rising_axis(root):
    notebook = Notebook()
    result = distill(short(root, "tracked", control=True), trackers=[notebook])
    assert notebook.settings["stage1.lr"] == 1e-2 and notebook.settings["kernel.kernel"] == "flexformer_p"
    steps = [step for step, _ in notebook.lines]
    assert steps == sorted(steps) and steps[0] == 1 and steps[-1] == 8  # two steps each of four stages
    names = set().union(*(values for _, values in notebook.lines))
    assert {
        "teacher/eval/accuracy",
        "stage1/train/cross_entropy",
        "stage2/final/best_step",
        "control/eval/loss",
    } <= names
    records = [json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()]
    wanted = [r["output_error"] for r in records if (r["stage"], r["kind"]) == ("stage1", "eval")]
    assert [v["stage1/eval/output_error"] for _, v in notebook.lines if "stage1/eval/output_error" in v] == wanted


def test_a_best_checkpoint_that_was_changed_is_noticed(root, monkeypatch):
    from hf_attn_ext.training import checkpoints

    original = checkpoints.CheckpointStore.load

    def load(self, step, stage):
        state = original(self, step, stage)
        with torch.no_grad():
            for group in stage.optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.add_(0.05)
        return state

    monkeypatch.setattr(checkpoints.CheckpointStore, "load", load)
    stage2 = {
        "steps": 8,
        "batch_size": 8,
        "evaluate_every": 1,
        "lr": 0.3,
    }  # ruins the model, so the best is not the last
    values = short(root, "changed", teacher={"steps": 0}, stage1={"steps": 0}, stage2=stage2)
    with pytest.raises(AttnExtError, match=r"best checkpoint.*reloaded"):
        distill(values)


@pytest.mark.parametrize("kernel", ["performer", "uniform"])
def test_a_kernel_without_parameters_skips_stage_1_and_says_so(root, kernel, capfd):
    values = short(root, kernel, teacher={"steps": 0}, kernel={"kernel": kernel, "num_features": 4})
    values["output"]["progress"] = True
    result = distill(values)
    said = f"kernel {kernel!r} has nothing to train"
    assert result.results["skipped"] == {"stage1": said}
    assert f"stage1 is skipped: {said}" in capfd.readouterr().err
    assert result.results["transfer"]["stage1"] == result.results["transfer"]["converted"]
    assert result.results["scores"]["teacher"] is None  # a new head, never trained
    assert result.results["scores"]["stage2"]["accuracy"] >= 0


def test_regression(tmp_path):
    small.prepare(tmp_path, regression=True)
    longer = {"steps": 40, "batch_size": 16, "lr": 5e-3}
    result = distill(
        small.settings(tmp_path, teacher=longer, stage1=SHORT, stage2={**longer, "distillation": 0.5}, control=True)
    )
    assert result.results["task"] == "regression" and result.results["metric"] == "pearson"
    assert result.results["scores"]["teacher"]["pearson"] > 0.5
    assert set(result.results["scores"]["stage2"]) == {"pearson", "spearman", "rmse", "loss"}
    model = AutoModelForSequenceClassification.from_pretrained(result.model_folder)
    assert model.config.num_labels == 1 and model.config.problem_type == "regression"


def test_other_texts_packed_for_stage_1_and_hybrid_layers(root):
    (root / "lines.txt").write_text("\n".join(row["text"] for row in small.rows(80, seed=9)))
    values = short(
        root,
        "packed",
        teacher={"steps": 0},
        stage1={**SHORT, "packing": True, "max_length": 24},
        stage1_data={"train": str(root / "lines.txt"), "validation_fraction": 0.2},
        kernel={"kernel": "hedgehog", "num_features": 4, "layers": [1]},
    )
    result = distill(values)
    layers = result.results["transfer"]["stage1"]["layers"]
    assert [layer["layer_idx"] for layer in layers] == [1]
    assert result.results["transfer"]["stage1"]["queries"] % 24 == 0
    keys = load_file(result.model_folder / "model.safetensors")
    assert any("layer.1." in k and "feature_map" in k for k in keys)
    assert not any("layer.0." in k and "feature_map" in k for k in keys)


def test_stage_2_off_saves_what_stage_1_made(root):
    result = distill(short(root, "stage1only", stage2={"steps": 0}))
    assert result.results["skipped"] == {"stage2": "stage2.steps is 0"}
    assert result.results["scores"]["stage2"] == pytest.approx(result.results["scores"]["stage1"])


def test_a_frozen_feature_map_in_stage_2(root):
    from hf_attn_ext.training.stages import finetune

    seen = []
    original = finetune.TaskStage.release

    def release(self):
        model, state = original(self)
        seen.append({name for name, p in model.named_parameters() if not p.requires_grad})
        return model, state

    finetune.TaskStage.release = release
    try:
        distill(short(root, "frozen", teacher={"steps": 0}, stage2={**SHORT, "feature_map_lr": 0.0}))
    finally:
        finetune.TaskStage.release = original
    assert seen[0] and all("feature_map" in name for name in seen[0])


@pytest.mark.parametrize("native", [True, False])
def test_auto_precision_is_bf16_only_where_the_device_computes_in_it(root, monkeypatch, recwarn, native):
    monkeypatch.setattr(launch, "computes_in_bf16", lambda: native)
    results = distill(short(root, f"auto-{native}", mixed_precision="auto")).results
    assert results["mixed_precision"] == ("bf16" if native else "no")
    assert not [warning for warning in recwarn if "bf16" in str(warning.message)]


def test_bf16_on_a_device_that_only_emulates_it_warns(root, monkeypatch):
    monkeypatch.setattr(launch, "computes_in_bf16", lambda: False)
    with pytest.warns(UserWarning, match="no bf16 arithmetic.*'auto' chooses"):
        launch.make_accelerator(DistillConfig.from_dict(short(root, "emulated", mixed_precision="bf16")))


def test_bfloat16_autocast_trains_and_stays_near(root):
    results = {}
    values = short(root, "precision-other", mixed_precision="bf16")
    with pytest.raises(AttnExtError, match="another precision than 'bf16'; start the run in a new process"):
        distill(short(root, "precision-first", mixed_precision="no"))
        distill(values)
    for precision in ("no", "bf16"):
        AcceleratorState._reset_state()
        results[precision] = distill(short(root, f"precision-{precision}", mixed_precision=precision)).results
        metrics_file = root / f"precision-{precision}" / "metrics.jsonl"
        assert "null" not in metrics_file.read_text()
    one, two = (results[p]["transfer"]["stage1"] for p in ("no", "bf16"))
    assert two["output_error"] == pytest.approx(one["output_error"], rel=0.1)
    assert two["kl"] == pytest.approx(one["kl"], rel=0.1)
    AcceleratorState._reset_state()


def test_activation_checkpointing_gives_the_same_weights(root):
    off = {"name": str(root / "model"), "dropout": 0.0}
    plain = distill(short(root, "plain", model=off))
    saving = distill(short(root, "saving", model={**off, "activation_checkpointing": True}))
    one, two = (load_file(result.model_folder / "model.safetensors") for result in (plain, saving))
    for key in one:
        torch.testing.assert_close(one[key], two[key], rtol=1e-5, atol=1e-6)


def test_a_trained_teacher_keeps_its_classes(tmp_path):
    """Its first class is the data's second: the labels are brought together by name."""
    small.prepare(tmp_path, head=True, id2label={0: "GOOD", 1: "BAD"}, label2id={"GOOD": 0, "BAD": 1})
    longer = {"steps": 80, "batch_size": 16, "lr": 5e-3}
    result = distill(short(tmp_path, "run", teacher=longer))
    assert result.results["scores"]["teacher"]["accuracy"] > 0.7
    model = AutoModelForSequenceClassification.from_pretrained(result.model_folder)
    assert model.config.id2label == {0: "GOOD", 1: "BAD"}
    tokenizer = AutoTokenizer.from_pretrained(result.folder / "teacher")
    teacher = AutoModelForSequenceClassification.from_pretrained(result.folder / "teacher").eval()
    with torch.no_grad():
        logits = teacher(**tokenizer(["good good great the film lovely"], return_tensors="pt")).logits
    assert logits.argmax(-1).item() == 0


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"model": {"name": "./no-such"}}, "model.name.*'./no-such' does not exist"),
        ({"model": {"name": "no-such-model"}}, "'no-such-model' cannot be opened"),
        ({"data": {"max_length": 64}}, "max_length is 64.*only 38 positions"),
        ({"data": {"metric": "acuracy"}}, "no metric 'acuracy'.*'accuracy'"),
        ({"teacher": {"steps": 0}, "stage2": {"distillation": 0.5}}, "needs a teacher with a trained classifier"),
        ({"kernel": {"kernel": "hedgehog", "layers": [7]}}, "layer 7 is out of range"),
        ({"tracking": {"trackers": ["wandbb"]}}, "unknown tracker 'wandbb'.*'wandb'"),
        ({"mixed_precision": "fp16"}, "fp16 training needs a GPU|mixed_precision"),
        ({"processes": 2}, "asks for 2 processes, but 1 runs"),
        ({"stage1": {"packing": True, "max_length": 38, "steps": 2}, "data": {"group_column": "text"}}, "long enough"),
        ({"teacher": {"steps": 4, "lr": 1e30, "evaluate_every": 1}}, "teacher: .* not finite|logits are not finite"),
    ],
)
def test_mistakes_are_one_line(root, sections, said):
    name = f"mistake-{len(said)}-{len(sections)}"
    values = short(root, name)
    for section, value in sections.items():
        values[section] = {**values[section], **value} if isinstance(value, dict) and section in values else value
    with pytest.raises(AttnExtError, match=said) as caught:
        distill(values)
    assert "\n" not in str(caught.value)
    if "finite" not in said:  # found before anything is written, so the folder is free for the mended run
        assert not (root / name).exists()


def test_a_model_without_a_tokenizer_or_with_anothers(root, tmp_path):
    bare = tmp_path / "bare"
    RobertaModel(small.host_config()).save_pretrained(bare)
    with pytest.raises(AttnExtError, match="bare' has no tokenizer"):
        distill(short(root, "bare", model={"name": str(bare)}))
    narrow = small.save_model(tmp_path / "narrow", vocab_size=9)
    with pytest.raises(AttnExtError, match=r"not that of model .*narrow.* knows ids below 9"):
        distill(short(root, "narrow", model={"name": str(narrow)}))
    assert not (root / "bare").exists() and not (root / "narrow").exists()


def test_a_model_whose_attention_cannot_be_swapped_is_refused_for_that(root, tmp_path):
    folder = tmp_path / "xlnet"
    XLNetModel(XLNetConfig(d_model=16, n_layer=1, n_head=2, d_inner=32, vocab_size=40)).save_pretrained(folder)
    small.save_tokenizer(folder)
    with pytest.raises(AttnExtError, match=r"'xlnet'.*cannot be swapped; supported: bert, roberta"):
        distill(short(root, "xlnet", model={"name": str(folder)}))


def test_labels_that_do_not_match_the_teachers(tmp_path):
    small.prepare(tmp_path, head=True, num_labels=3)
    with pytest.raises(AttnExtError, match=r"labels don't match the teacher's: 2 in the data.*3 in the model"):
        distill(short(tmp_path, "run"))


def test_a_converted_teacher_is_refused(root):
    result = distill(short(root, "once", teacher={"steps": 0}))
    with pytest.raises(AttnExtError, match="is converted already"):
        distill(short(root, "twice", model={"name": str(result.model_folder)}))


def test_only_the_steps_that_are_asked_for_are_measured(root):
    all_of_it = distill(short(root, "measure-all")).results
    some = distill(short(root, "measure-some", measure=["stage1"])).results
    assert some["scores"]["stage1"] == all_of_it["scores"]["stage1"]
    assert [name for name, scores in some["scores"].items() if scores] == ["stage1"]
    assert list(some["transfer"]) == ["stage1"] and some["transfer"]["stage1"] == all_of_it["transfer"]["stage1"]
    assert "gap_closed" not in some
    Console(file=io.StringIO()).print(results_table(some))
    with pytest.raises(AttnExtError, match=r"'measure': unknown step 'stage3'.*'stage2'|'stage1'"):
        DistillConfig.from_dict(short(root, measure=["stage3"]))
