"""Butterfly and masked language modelling, at small size: the whole run, resuming, and what its scores are."""

import json
import re

import numpy as np
import pytest
import torch
from transformers import AutoModelForMaskedLM, PreTrainedTokenizerFast

import hf_attn_ext as hax
from benchmarks.studies.butterfly import __main__ as butterfly
from benchmarks.studies.butterfly.operations import step_operations
from benchmarks.studies.butterfly.scoring import cloze_passes, masked_passes
from benchmarks.studies.common.objectives import BothSides, Masked
from benchmarks.studies.common.rates import chosen_rate
from benchmarks.studies.common.training import token_losses
from hf_attn_ext.inference import butterfly_score
from hf_attn_ext.training import loop
from hf_attn_ext.training.data.encoding import EncodedSplit

TINY = ["--layers", "1", "--heads", "2", "--hidden", "16", "--context", "8", "--vocabulary", "300", "--steps", "4"]
TINY += ["--batch-size", "4", "--validation-sequences", "4", "--test-sequences", "6", "--compared-texts", "3"]
TINY += ["--lr", "1e-3,1e-2"]


def runs_of(folder):
    found = json.loads((folder / "results.json").read_text())["runs"]
    for run in found:
        for timed in (run, run.get("passes", {})):
            timed.pop("seconds_a_text", None)
    return found


def test_a_run_of_everything(tiny_texts, tmp_path, capsys):
    arguments = [*TINY, "--seeds", "0,1", "--out", "runs/butterfly"]
    assert butterfly.main(arguments) == 0
    printed = capsys.readouterr().out
    for row in ("| butterfly | 4 |", "| masked, equal steps | 4 |", "| unigram (control) |", "versions: python"):
        assert row in re.sub(r"\| 0\.01 ", "", printed)  # the rate that four steps learn more by
    folder = tmp_path / "runs" / "butterfly"
    results = json.loads((folder / "results.json").read_text())
    runs = {(run["training"], run["seed"]): run for run in results["runs"]}
    for training in butterfly.TRAININGS:
        tried = {
            lr: json.loads((folder / training / "rates" / "seed-0" / f"lr-{lr}" / "result.json").read_text())
            for lr in (0.001, 0.01)
        }
        assert (
            min(tried, key=lambda lr: tried[lr]["validation"]) == runs[training, 1]["rate"] == runs[training, 0]["rate"]
        )
    assert len(runs) == 6 and len({run["pseudo"]["loss"] for run in runs.values()}) == 6
    assert {run["pseudo"]["tokens"] for run in runs.values()} == {48} == {results["unigram"]["tokens"]}
    ours, equal, more = (runs[name, 0] for name in butterfly.TRAININGS)
    assert equal["steps"] == ours["steps"] < more["steps"]
    assert more["operations"] * more["steps"] == pytest.approx(ours["operations"] * ours["steps"], rel=0.06)
    assert ours["labels"] == 4 * 8 and len({run["parameters"] for run in runs.values()}) == 1
    assert max(results["compared"]["largest_difference"]) < 1e-4 and ours["passes"]["texts"] == 3
    assert (folder / "results.md").read_text() in printed and (folder / "results.png").stat().st_size > 1000
    model = AutoModelForMaskedLM.from_pretrained(folder / "butterfly" / "seed-1" / "model", attn_implementation="hasse")
    assert hax.get_mask(model) == [("butterfly", {})]
    assert not (folder / "mlm" / "seed-0" / "checkpoints").exists()

    # Run again: finished runs are read; another setting is not mixed in.
    before = (folder / "mlm" / "seed-0" / "metrics.jsonl").read_bytes()
    assert butterfly.main(arguments) == 0
    assert capsys.readouterr().out == printed
    assert (folder / "mlm" / "seed-0" / "metrics.jsonl").read_bytes() == before
    for changed in (["--share", "0.5"], ["--test-sequences", "5"]):
        assert butterfly.main([*arguments, *changed]) == 2
        assert f"holds a run with another {changed[0].strip('-').replace('-', '_')}: " in capsys.readouterr().err


def test_a_stopped_run_goes_on(tiny_texts, tmp_path, monkeypatch):
    assert butterfly.main([*TINY, "--out", "whole"]) == 0
    step, done = loop._one_step, []

    def stopping(*arguments):
        done.append(1)
        if len(done) in (8, 20):  # while a rate is chosen, and in the third step of masked language modelling
            raise KeyboardInterrupt
        return step(*arguments)

    monkeypatch.setattr(loop, "_one_step", stopping)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            butterfly.main([*TINY, "--out", "parts"])
    assert butterfly.main([*TINY, "--out", "parts"]) == 0
    runs = runs_of(tmp_path / "parts")
    # every step once, two rates that are tried for a quarter of them, and the two that were stopped
    assert len(done) == 2 + 1.5 * sum(run["steps"] for run in runs)
    assert runs == runs_of(tmp_path / "whole")


class Tokens:
    pad_token_id, mask_token_id, padding_side, bos_token_id, eos_token_id = 0, 39, "right", 1, 1

    def __len__(self):
        return 40


def made(training):
    options = butterfly.build_parser().parse_args([*TINY, "--layers", "2", "--initializer-range", "0.3"])
    model = butterfly.build_model(training, options, Tokens(), seed=0).double().eval()
    return model, torch.randint(2, 39, (3, 8), generator=torch.Generator().manual_seed(0))


def test_one_pass_gives_what_n_passes_give():
    model, ids = made("butterfly")
    torch.testing.assert_close(cloze_passes(model, ids), butterfly_score(model, ids), rtol=1e-9, atol=1e-9)


def test_the_loss_of_butterfly_is_its_score():
    model, ids = made("butterfly")
    split = EncodedSplit([row.numpy() for row in ids], None, None)
    losses = token_losses(model, split, BothSides(Tokens(), model), torch.device("cpu"))
    np.testing.assert_allclose(losses, -butterfly_score(model, ids).numpy(), rtol=1e-9)


@torch.no_grad()
def test_masked_passes_hide_one_token_each():
    model, ids = made("mlm")
    found = masked_passes(model, ids, 39)
    for k in range(ids.shape[1]):
        hidden = ids.clone()
        hidden[:, k] = 39
        expected = model(input_ids=hidden).logits[:, k].log_softmax(-1).gather(1, ids[:, k, None])[:, 0]
        torch.testing.assert_close(found[:, k], expected)


def test_masks_of_held_out_text_come_again(tiny_texts):
    from benchmarks.studies.common.vocabulary import train_tokenizer

    tokenizer = train_tokenizer(tiny_texts / "vocabulary", ["the road was long"] * 9, 300)
    assert isinstance(tokenizer, PreTrainedTokenizerFast)
    tokenizer.add_special_tokens({"mask_token": "<mask>"})
    model, ids = made("mlm")
    split = EncodedSplit([row.numpy() for row in ids], None, None)
    items = [split[row] for row in range(3)]
    fixed = Masked(tokenizer, model, 0.3, seed=0)
    first = fixed(items)
    following = fixed(items)
    fixed.restart()
    again = fixed(items)
    assert first["labels"].equal(again["labels"]) and first["input_ids"].equal(again["input_ids"])
    assert not first["labels"].equal(following["labels"])
    hidden = first["labels"] >= 0
    assert first["labels"][hidden].equal(ids[hidden]) and first["input_ids"][~hidden].equal(ids[~hidden])
    assert (Masked(tokenizer, model, 0.001)(items)["labels"] >= 0).any()  # never without a prediction


def test_operations_count_every_product():
    options = butterfly.build_parser().parse_args(TINY)
    counts = {}
    for training, labels in (("butterfly", 8), ("mlm", 2)):
        model = butterfly.build_model(training, options, Tokens(), seed=0, backend="eager")
        ids = torch.randint(2, 39, (4, 8))
        items = [{"index": row, "input_ids": ids[row].numpy()} for row in range(4)]
        if training == "butterfly":
            batch = BothSides(Tokens(), model)(items)
        else:
            wanted = torch.full((4, 8), -100)
            wanted[:, :labels] = 5
            batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": wanted}
        n, d, rows = batch["labels"].shape[1], 16, 4
        layer = n * (4 * d * d + 2 * d * 64) + 2 * n * n * d
        head = labels * (d * d + d * 40)
        assert step_operations(model, batch) == 3 * 2 * rows * (layer + head)  # forward, and two of each behind it
        counts[training] = n
    assert counts == {"butterfly": 22, "mlm": 8}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--seeds", "0,x"], "'x'"),
        (["--out", ".assets/sotu/train.jsonl"], "cannot write into --out, '.assets/sotu/train.jsonl'"),
        (["--seeds", "2,2"], "--seeds names 2 twice"),
        (["--heads", "3"], "--hidden 16 is no multiple of --heads 3"),
        (["--context", "1"], "--context 1"),
        (["--share", "1"], "--share must be below 1, got 1.0"),
        (["--share", "0"], "--share must be a number above 0"),
        (["--lr", "1e-3,nan"], "--lr takes numbers above 0 with commas, got 'nan'"),
        (["--lr", "1e-3,0.001"], "--lr names 0.001 twice"),
        (["--tune-share", "2"], "--tune-share must be at most 1, got 2.0"),
        (["--steps", "-1"], "--steps must be at least 1, got -1"),
        (["--context", "4000"], "no text in 'train' is long enough"),
    ],
)
def test_mistakes_are_one_line(tiny_texts, capsys, arguments, named):
    assert butterfly.main([*TINY, *arguments]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: ") and named in lines[0]


def test_a_rate_that_diverges_is_not_chosen_and_seeds_choose_for_themselves(tmp_path):
    from hf_attn_ext.errors import AttnExtError

    def loss_at(rate, here):
        tried.append((rate, here))
        if rate > 1:
            raise AttnExtError("butterfly: held-out loss is not finite at step 1")
        return float("nan") if rate == 0.5 else rate

    tried = []
    assert chosen_rate([2.0, 0.5, 0.2, 0.1], loss_at, tmp_path, seed=0) == 0.1 and len(tried) == 4
    assert chosen_rate([2.0, 0.5, 0.2, 0.1], loss_at, tmp_path, seed=0) == 0.1 and len(tried) == 4
    assert chosen_rate([0.3, 0.2], loss_at, tmp_path, seed=1) == 0.2 and len({here for _, here in tried}) == 6
    with pytest.raises(AttnExtError, match="no rate of --lr has a finite loss: 2, 3"):
        chosen_rate([2.0, 3.0], loss_at, tmp_path, seed=1)
    with pytest.raises(OSError, match="full"):  # what has nothing to do with the rate is not hidden
        chosen_rate([2.0, 3.0], lambda *_: (_ for _ in ()).throw(OSError("full")), tmp_path, seed=2)
