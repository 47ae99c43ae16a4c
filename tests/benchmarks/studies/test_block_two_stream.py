"""Block two-stream and next-token training, at small size: the whole run, resuming, and what its losses are."""

import json

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2LMHeadModel, LlamaForCausalLM

import hf_attn_ext as hax
from benchmarks.studies.block_two_stream import __main__ as block_two_stream
from benchmarks.studies.block_two_stream.start import texts_of
from benchmarks.studies.common.objectives import Blocks, NextToken
from benchmarks.studies.common.results import mean_loss
from benchmarks.studies.common.texts import Texts, unigram_losses
from benchmarks.studies.common.training import token_losses
from hf_attn_ext.inference import block_generate
from hf_attn_ext.training import loop
from hf_attn_ext.training.data.encoding import EncodedSplit
from tests.integration import tiny

TINY = ["--layers", "1", "--heads", "2", "--hidden", "16", "--context", "16", "--vocabulary", "300", "--steps", "4"]
TINY += ["--batch-size", "4", "--pretrain-steps", "2", "--stage1-steps", "2", "--num-features", "4", "--repeats", "1"]
TINY += ["--validation-sequences", "4", "--test-sequences", "6", "--prompt-tokens", "4", "--new-tokens", "6"]
TINY += ["--lr", "1e-3,1e-2"]


def runs_of(folder):
    found = json.loads((folder / "results.json").read_text())["runs"]
    for run in found:
        run.pop("tokens_per_second", None)
    return found


def test_a_run_of_everything(tiny_texts, tmp_path, capsys):
    arguments = [*TINY, "--blocks", "2,3", "--out", "runs/blocks"]
    assert block_two_stream.main(arguments) == 0
    printed = capsys.readouterr().out
    for row in ("| softmax | next token |", "| **flexformer_p** | blocks of 3 |", "| unigram (control) |"):
        assert row in printed
    assert "versions: python" in printed and "4 steps of 4 sequences" in printed
    folder = tmp_path / "runs" / "blocks"
    results = json.loads((folder / "results.json").read_text())
    runs = {(run["attention"], run["training"]): run for run in results["runs"]}
    assert runs["softmax", "start"]["rate"] is None and runs["flexformer_p", "next"]["rate"] == 0.01
    assert len(runs) == 8 and len({run["as_trained"]["loss"] for run in runs.values()}) == 8
    assert len({run["as_trained"]["tokens"] for run in [*runs.values(), {"as_trained": results["unigram"]}]}) == 1
    for (_, training), run in runs.items():
        assert (run["as_trained"] == run["next_token"]) == (not training.startswith("block"))
        assert ("tokens_per_second" in run) == (training != "start")
    assert (folder / "results.md").read_text() in printed and (folder / "results.png").stat().st_size > 1000

    # The model opens again with its mask, and measures what it measured.
    here = folder / "flexformer_p" / "block-3" / "seed-0"
    model = AutoModelForCausalLM.from_pretrained(here / "model").eval()
    tokenizer = AutoTokenizer.from_pretrained(here / "model")
    assert hax.get_mask(model) == [("block_two_stream", {"block_size": 3})] and tokenizer.mask_token == "<mask>"
    options = block_two_stream.build_parser().parse_args(arguments)
    block_two_stream.check(options)
    texts = texts_of(options)[1]
    again = token_losses(model, texts.test, Blocks(tokenizer, model), torch.device("cpu"))
    np.testing.assert_allclose(again, np.load(here / "losses.npz")["as_trained"], rtol=1e-5)
    assert not (here / "checkpoints").exists()

    # Run again: finished runs are read; another setting is not mixed in.
    before = (here / "metrics.jsonl").read_bytes()
    assert block_two_stream.main(arguments) == 0
    assert capsys.readouterr().out == printed and (here / "metrics.jsonl").read_bytes() == before
    for changed in (["--lr", "0.5"], ["--new-tokens", "5"], ["--model", "mgm"]):
        assert block_two_stream.main([*arguments, *changed]) == 2
        name = changed[0].strip("-").replace("-", "_")
        assert f"runs/blocks holds a run with another {name}: " in capsys.readouterr().err


def test_a_stopped_run_goes_on(tiny_texts, tmp_path, monkeypatch):
    few = [*TINY, "--attention", "softmax", "--blocks", "2"]
    assert block_two_stream.main([*few, "--out", "whole"]) == 0
    step, done = loop._one_step, []

    def stopping(*arguments):
        done.append(1)
        if len(done) in (2, 6, 19):  # in pretraining, while a rate is chosen, in the third step of block training
            raise KeyboardInterrupt
        return step(*arguments)

    monkeypatch.setattr(loop, "_one_step", stopping)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            block_two_stream.main([*few, "--out", "parts"])
    assert block_two_stream.main([*few, "--out", "parts"]) == 0
    assert len(done) == 2 + 2 * 2 * 2 + 4 + 4 + 3  # every step once, and the three that were stopped
    assert runs_of(tmp_path / "parts") == runs_of(tmp_path / "whole")


def test_several_seeds_of_the_checkpoint(tiny_texts, tmp_path, capsys):
    arguments = ["--model", "mgm", "--attention", "softmax", "--samples", "24", "--blocks", "4", "--seeds", "0,1"]
    assert block_two_stream.main([*TINY, *arguments]) == 0
    runs = runs_of(tmp_path / "runs" / "blocks-mgm")
    losses = [[run["as_trained"]["loss"] for run in runs if run["training"] == name] for name in ("start", "block-4")]
    assert losses[0][0] == losses[0][1] and losses[1][0] != losses[1][1]
    assert "| softmax | before fine-tuning |" in capsys.readouterr().out


class Tokens:
    pad_token_id, mask_token_id, padding_side = 0, 39, "right"


def split_of(*lengths):
    generator = np.random.default_rng(0)
    return EncodedSplit([generator.integers(3, 38, length) for length in lengths], None, None)


@pytest.mark.parametrize("cls", [GPT2LMHeadModel, LlamaForCausalLM])
@torch.no_grad()
def test_the_loss_of_blocks_is_that_of_their_generation(cls):
    model = hax.set_mask(tiny.tiny_model(cls).double().eval(), "block_two_stream", block_size=3)
    split = split_of(7, 10, 2)
    losses = token_losses(model, split, Blocks(Tokens, model), torch.device("cpu"))
    assert losses.shape == (3, 10)
    for row, length in enumerate(split.lengths):
        text = torch.from_numpy(split[row]["input_ids"]).long()
        expected = torch.full((10,), torch.nan, dtype=torch.float64)
        for start in range(0, length, 3):
            prompt, real = text[None, : max(1, start)], torch.ones(1, max(1, start)) * (start > 0)
            options = {"mask_token_id": 39, "eos_token_id": None, "return_logits": True}
            logits = block_generate(model, prompt, real, max_new_tokens=3, **options).logits[0][0]
            block = text[start : start + 3]
            if len(block) < 3:  # in training it has no mask tokens behind the text
                batch, n = Blocks(Tokens, model)([split[row]]), max(3, length)
                inputs = {name: batch[name] for name in ("input_ids", "attention_mask", "position_ids")}
                logits = model(**inputs, use_cache=False).logits[0, n + start : n + length]
            expected[start : start + len(block)] = cross_entropy(logits, block, reduction="none")
        expected[0] = torch.nan
        np.testing.assert_allclose(losses[row], expected.numpy(), rtol=1e-9)


@torch.no_grad()
def test_the_loss_of_the_next_token_is_the_models_own():
    model = tiny.tiny_model(LlamaForCausalLM).double().eval()
    split = split_of(9)
    losses = token_losses(model, split, NextToken(Tokens), torch.device("cpu"))
    ids = torch.from_numpy(split[0]["input_ids"]).long()[None]
    assert np.isnan(losses[0, 0])
    assert np.nanmean(losses) == pytest.approx(float(model(ids, labels=ids).loss), rel=1e-6)  # it computes in float32


def test_the_control_knows_how_often_a_token_comes():
    train, test = EncodedSplit([np.array([1, 1, 2])], None, None), EncodedSplit([np.array([1, 3]), [2]], None, None)
    losses = unigram_losses(Texts(None, train, train, test), 4)
    np.testing.assert_allclose(losses, -np.log([[3 / 7, 1 / 7], [2 / 7, np.nan]]))
    assert mean_loss(losses)["tokens"] == 3 and mean_loss(losses)["loss"] == pytest.approx(np.nanmean(losses))


def test_places_of_a_block():
    losses = np.array([[np.nan, 1.0, 2.0, 3.0, 4.0]])
    assert block_two_stream.by_place(losses, 2) == [3.0, 2.0]
    assert block_two_stream.by_place(losses, 5) == [None, 1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (
            ["--attention", "softmax,hedghog"],
            "'hedghog', which is neither softmax nor a kernel. Did you mean 'hedgehog'?",
        ),
        (["--attention", "softmax,softmax"], "--attention names softmax twice"),
        (["--blocks", "2,0"], "--blocks takes whole numbers from 1 to --context 16, got '0'"),
        (["--blocks", "2,17"], "got '17'"),
        (["--seeds", "0,x"], "'x'"),
        (["--out", ".assets/sotu/train.jsonl"], "cannot write into --out, '.assets/sotu/train.jsonl'"),
        (["--seeds", "1,1"], "--seeds names 1 twice"),
        (["--hidden", "15"], "--hidden 15"),
        (["--steps", "0"], "--steps must be at least 1, got 0"),
        (["--lr", "nan"], "--lr takes numbers above 0 with commas, got 'nan'"),
        (["--tune-share", "2"], "--tune-share must be at most 1, got 2.0"),
        (["--vocabulary", "256"], "--vocabulary 256"),
        (["--new-tokens", "16"], "more than the 16 tokens of --context"),
    ],
)
def test_mistakes_are_one_line(tiny_texts, capsys, arguments, named):
    assert block_two_stream.main([*TINY, *arguments]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: ") and named in lines[0]


def test_texts_that_are_too_short_for_the_prompt(tiny_texts, capsys):
    sizes = ["--model", "mgm", "--samples", "24", "--context", "96", "--prompt-tokens", "90", "--new-tokens", "5"]
    assert block_two_stream.main([*TINY, *sizes]) == 2
    assert "no held-out text has the 90 tokens of --prompt-tokens" in capsys.readouterr().err
