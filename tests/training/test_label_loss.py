"""The loss outside the model, in Trainer: every position learns its own target, smoothed or not."""

import warnings

import pytest
import torch
from torch.nn.functional import log_softmax
from transformers import BertForMaskedLM, GPT2LMHeadModel, LlamaForCausalLM, Trainer, TrainingArguments

import hf_attn_ext as hax
from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.training import BlockTwoStreamCollator, ButterflyCollator, LabelLoss, accept_neighbour_ids
from tests.integration import tiny

TEXTS = [{"input_ids": [5, 6, 7, 8, 9, 10, 11]}, {"input_ids": [12, 13, 14, 15]}]


class Tokens:
    pad_token_id, mask_token_id = 0, 39


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="set_mask on")
        yield


def made(cls, name):
    model = tiny.tiny_model(cls, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0) if cls is GPT2LMHeadModel else None
    model = model or tiny.tiny_model(cls)
    hax.set_mask(model, name, **({"block_size": 2} if name == "block_two_stream" else {}))
    accept_neighbour_ids(model)
    return model, (ButterflyCollator if name == "butterfly" else BlockTwoStreamCollator)(Tokens, model)


def by_hand(model, batch, smoothing):
    """Label for label."""
    batch = dict(batch)
    labels = batch.pop("labels")
    batch.pop("shift_labels", None)
    scores = log_softmax(model(**batch).logits, -1)
    found = [
        -(1 - smoothing) * scores[row, at, labels[row, at]] - smoothing * scores[row, at].mean()
        for row, at in (labels >= 0).nonzero().tolist()
    ]
    return torch.stack(found).mean()


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("name", ["butterfly", "block_two_stream"])
@pytest.mark.parametrize("cls", [GPT2LMHeadModel, LlamaForCausalLM, BertForMaskedLM])
def test_trainer_s_loss_is_the_one_by_hand(cls, name, smoothing, tmp_path):
    model, collator = made(cls, name)
    args = TrainingArguments(
        output_dir=str(tmp_path), report_to=[], use_cpu=True, per_device_eval_batch_size=2, disable_tqdm=True,
        per_device_train_batch_size=1, gradient_accumulation_steps=2, max_steps=1, learning_rate=0.0, logging_steps=1,
        save_strategy="no", seed=0, label_smoothing_factor=smoothing,
    )  # fmt: skip
    trainer = Trainer(
        model, args, data_collator=collator, train_dataset=TEXTS, eval_dataset=TEXTS,
        compute_loss_func=LabelLoss(smoothing),
    )  # fmt: skip
    with torch.no_grad():
        expected = float(by_hand(model, collator(TEXTS), smoothing))
        if smoothing == 0:
            torch.testing.assert_close(float(model(**collator(TEXTS)).loss), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(trainer.evaluate()["eval_loss"], expected, rtol=1e-4, atol=1e-4)
    if cls is not BertForMaskedLM:  # whose dropout is on in training
        trainer.train()
        logged = next(entry["loss"] for entry in trainer.state.log_history if "loss" in entry)
        torch.testing.assert_close(logged, expected, rtol=1e-3, atol=1e-3)


def test_mistakes_are_one_line():
    for value in (-0.1, 1, "x", None, True):
        with pytest.raises(AttnExtError, match="label_smoothing must be a number from 0 to below 1, got"):
            LabelLoss(value)
    for labels in (None, torch.zeros(2, 2).long()):
        with pytest.raises(AttnExtError, match=r"labels must be as the logits, \(2, 3\), got"):
            LabelLoss()({"logits": torch.zeros(2, 3, 4)}, labels)
