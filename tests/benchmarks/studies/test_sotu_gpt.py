"""The GPT examples at small size: training from scratch, next to the control, and the decoder's main job."""

import json
import re

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from benchmarks.studies.common.vocabulary import train_tokenizer
from benchmarks.studies.demo import decoder as demo_gpt
from benchmarks.studies.train_sotu_gpt import __main__ as train_sotu_gpt
from benchmarks.studies.train_sotu_gpt.models import build_model
from hf_attn_ext.integration import is_converted

TINY = ["--layers", "2", "--heads", "2", "--hidden", "16", "--context", "16", "--vocabulary", "300", "--steps", "3"]
TINY += ["--batch-size", "4", "--feature-dim", "8", "--validation-sequences", "8"]
FEW_STEPS = [f"--set={stage}.{field}=2" for stage in ("stage1", "stage2") for field in ("steps", "evaluate_every")]


def options(*arguments):
    return train_sotu_gpt.build_parser().parse_args([*TINY, *arguments])


def test_a_run_of_everything(tiny_texts, tmp_path, capsys):
    arguments = [*TINY, "--kernels", "elu,flexformer_p", "--seeds", "0,1", "--out", "runs/sotu"]
    assert train_sotu_gpt.main(arguments) == 0
    printed = capsys.readouterr().out
    for name in ("| softmax |", "| last-8 |", "| elu |", "| **flexformer_p** |"):
        assert name in printed
    folder = tmp_path / "runs" / "sotu"
    results = json.loads((folder / "results.json").read_text())
    runs = {(run["name"], run["seed"]): run for run in results["runs"]}

    def beyond(name, other):
        return [runs[name, seed]["scores"]["loss"] - runs[other, seed]["scores"]["loss"] for seed in (0, 1)]

    assert f"| {sum(beyond('elu', 'softmax')) / 2:+.4f} ± " in printed
    duel = re.search(r"flexformer_p beyond elu: .* by seed (.*), (.*)\.", printed).groups()
    assert [float(x) for x in duel] == pytest.approx(beyond("flexformer_p", "elu"), abs=6e-5)
    assert len(runs) == 8 and len({run["scores"]["loss"] for run in runs.values()}) == 8
    assert (folder / "results.md").read_text() in printed and (folder / "results.png").stat().st_size > 1000
    sizes = [run["parameters"] for run in runs.values()]
    assert max(sizes) - min(sizes) < 0.03 * max(sizes) and max(sizes) == runs["softmax", 0]["parameters"]
    model = AutoModelForCausalLM.from_pretrained(folder / "flexformer_p" / "seed-1" / "model")
    tokenizer = AutoTokenizer.from_pretrained(folder / "flexformer_p" / "seed-1" / "model")
    assert is_converted(model)
    assert tokenizer.decode(tokenizer("Anna, said\nthat é")["input_ids"]) == "Anna, said\nthat é"
    assert not (folder / "elu" / "seed-0" / "checkpoints").exists()

    # Run again: finished runs are read; another setting is not mixed in.
    before = (folder / "elu" / "seed-0" / "metrics.jsonl").read_bytes()
    assert train_sotu_gpt.main(arguments) == 0
    assert capsys.readouterr().out == printed
    assert (folder / "elu" / "seed-0" / "metrics.jsonl").read_bytes() == before
    assert train_sotu_gpt.main([*arguments, "--lr", "0.5"]) == 2
    assert "another lr: 0.003, not 0.5" in capsys.readouterr().err


def test_the_runs_that_are_asked_for():
    names = ("softmax", "last-8", "elu")
    three = [(name, seed) for name in names for seed in (3, 1, 2)]
    found = train_sotu_gpt.check(options("--kernels", "elu,rfa", "--seeds", "3,1,2", "--once", "rfa"))
    assert found == [*three, ("rfa", 3)]


@torch.no_grad()
def test_the_control_sees_the_last_tokens_and_no_others():
    for layers, window, local in ((4, 8, 4), (2, 8, 4), (3, 8, 3), (4, 8, 0), (3, 8, 0), (2, 5, 0), (4, 2, 0)):
        sizes = options("--layers", str(layers), "--window", str(window), "--local-window", str(local))
        model = build_model(f"last-{window}", sizes, 300, 0, seed=0).eval()
        ids = torch.randint(0, 300, (1, 14), generator=torch.Generator().manual_seed(0))
        before = model(ids).logits[0, -1]
        for age in range(14):
            other = ids.clone()
            other[0, 13 - age] = (ids[0, 13 - age] + 7) % 300
            assert model(other).logits[0, -1].equal(before) == (age >= window), (layers, window, local, age)


def test_kernels_replace_the_layers_that_see_everything():
    model = build_model("elu", options("--layers", "4"), 300, 0, seed=0)
    attention = [layer.self_attn for layer in model.model.layers]
    assert [hasattr(layer, "feature_map") for layer in attention] == [False, True, False, True]
    assert [layer.sliding_window for layer in attention] == [4, None, 4, None]


def test_every_kernel_has_the_same_size():
    stock = build_model("softmax", options("--hidden", "32"), 300, 0, seed=0).num_parameters()
    for kernel in train_sotu_gpt.KERNELS:
        model = build_model(kernel, options("--hidden", "32"), 300, 0, seed=0)
        size = sum(parameter.numel() for parameter in model.parameters())
        assert 0.99 * stock < size <= stock, kernel


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--kernels", "hedghog"], "'hedghog'. Did you mean 'hedgehog'?"),
        (["--seeds", "0,x"], "'x'"),
        (
            ["--kernels", "elu,rfa", "--once", "rfaa"],
            "--once names 'rfaa', which is not in --kernels. Did you mean 'rfa'?",
        ),
        (["--hidden", "15"], "--hidden 15"),
        (["--steps", "0"], "--steps must be at least 1"),
        (["--vocabulary", "256"], "--vocabulary 256"),
        (["--window", "3"], "windows of 4 in 1 layers see more than 3"),
        (["--layers", "1"], "--local-window 0"),
        (["--kernels", "flexformer_p", "--feature-dim", "4096"], "smaller --feature-dim"),
    ],
)
def test_mistakes_are_one_line(tiny_texts, capsys, arguments, named):
    assert train_sotu_gpt.main([*TINY, "--kernels", "none", *arguments]) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("[sotu]")]
    assert len(lines) == 1 and lines[0].startswith("error: ") and named in lines[0]


def test_two_runs_may_train_one_vocabulary_at_once(tmp_path, monkeypatch):
    folder, texts = tmp_path / "runs" / "tokenizer-300", [f"the state of the union {i}" for i in range(50)]
    save = PreTrainedTokenizerFast.save_pretrained
    first: list[bytes] = []

    def saved(self, path, **options):  # while this one trains, another is done
        if not first:
            first.append(b"")
            train_tokenizer(folder, texts, 300)
            first[0] = (folder / "tokenizer.json").read_bytes()
        return save(self, path, **options)

    monkeypatch.setattr(PreTrainedTokenizerFast, "save_pretrained", saved)
    assert len(train_tokenizer(folder, texts[:2], 280)) > 280  # the first one's, not its own
    assert (folder / "tokenizer.json").read_bytes() == first[0]
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_a_vocabulary_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "tokenizer-300").mkdir()
    (tmp_path / "tokenizer-300" / "notes.txt").write_text("mine")
    with pytest.raises(OSError, match="tokenizer-300"):
        train_tokenizer(tmp_path / "tokenizer-300", ["the state"], 300)
    assert [path.name for path in tmp_path.iterdir()] == ["tokenizer-300"]


def check_demo(printed, capsys_err=""):
    for row in ("teacher", "control", "converted, untrained", "after stage 1", "after stage 2"):
        assert row in printed, printed
    assert re.search(r"fresh process: \d+ weights and buffers compared, all equal bit for bit", printed)
    assert re.search(r"fresh process: \d+ logits compared, largest difference 0.0, tolerance ", printed)
    assert re.search(r"fresh process: \d+ losses compared, largest difference 0.0, tolerance ", printed)
    assert printed.count("largest difference 0.0") == 2
    assert "generate(), the same with its state as without" in printed
    assert re.search(r"wall time: \d+ min \d+ s   peak memory: \d+\.\d+ GiB", printed)


def test_the_demo_on_text(tiny_texts, tmp_path, capsys, monkeypatch):
    parser = train_sotu_gpt.build_parser
    monkeypatch.setattr("benchmarks.studies.train_sotu_gpt.__main__.build_parser", lambda: _with_defaults(parser()))
    out = tmp_path / "runs" / "demo"
    teacher = ["--set=teacher.steps=2", "--set=teacher.evaluate_every=2", "--set=data.max_length=16"]
    arguments = ["--out", str(out), "--num-features", "4", *FEW_STEPS, *teacher]
    assert demo_gpt.main(arguments) == 0
    printed = capsys.readouterr().out
    check_demo(printed)
    assert re.search(r"gap closed: -?[\d.]+%; the gap between control and teacher is -?[\d.]+ ± [\d.]+ nats", printed)
    results = json.loads((out / "results.json").read_text())
    card = (out / "model" / "README.md").read_text()
    assert f"{results['scores']['stage2']['perplexity']:.4f}" in card and "AutoModelForCausalLM" in card
    assert str(tmp_path) not in card

    # Run again: the finished run is read, not run.
    journal = (out / "metrics.jsonl").read_bytes()
    assert demo_gpt.main(arguments) == 0
    assert (out / "metrics.jsonl").read_bytes() == journal


def _with_defaults(parser):
    parser.set_defaults(layers=1, heads=2, hidden=16, vocabulary=300)
    return parser


def test_the_demo_without_text(tiny_texts, tmp_path, capsys):
    arguments = ["--model", "mgm", "--samples", "24", "--num-features", "4", "--kernel", "hedgehog"]
    assert demo_gpt.main([*arguments, *FEW_STEPS, "--prompt", "<bos> anna"]) == 0
    check_demo(capsys.readouterr().out)
    folder = tmp_path / "runs" / "demo-gpt-mgm-hedgehog-0-samples"
    sizes = [len((folder / f"{name}.jsonl").read_text().splitlines()) for name in ("train", "validation", "test")]
    assert sum(sizes) <= 24 and sizes[1] == sizes[2] >= 2
    results = json.loads((tmp_path / "runs" / "demo-gpt-mgm-hedgehog-0" / "results.json").read_text())
    assert results["steps"]["teacher"] == 0 and results["config"]["stage2"]["distillation"] == 1.0


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--kernel", "flexformer_d"], "flexformer_d"),
        (["--model", "./nowhere"], "--data"),
        (["--model", "./nowhere", "--data", "user/texts"], "user/texts"),
        (["--model", "mgm", "--samples", "8", "--set", "stage1.stepps=3"], "stepps"),
    ],
)
def test_the_demos_mistakes_are_one_line(tiny_texts, capsys, monkeypatch, arguments, named):
    parser = train_sotu_gpt.build_parser
    monkeypatch.setattr("benchmarks.studies.train_sotu_gpt.__main__.build_parser", lambda: _with_defaults(parser()))
    assert demo_gpt.main(arguments) == 2
    progress = ("[distill]", "[demo]", "[texts]")
    lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith(progress)]
    assert len(lines) == 1 and lines[0].startswith("error: ") and named in lines[0]
