"""Sapiens, a trained RoBERTa with its masked-language-model head: antibody sequences, 4 layers x 8 heads x 16."""

import pytest
import torch
from transformers import AutoModelForMaskedLM, pipeline

from hf_attn_ext import integration as hax
from hf_attn_ext.training import attention_losses, evaluate_transfer

# A human antibody heavy chain, variable domain: what the model was trained on.
HEAVY_CHAIN = (
    "QVQLVQSGAEVKKPGASVKVSCKASGYTFTSYGISWVRQAPGQGLEWMGWISAYNGNTNYAQKLQGRVTMTTDTSTSTAYMELRSLRSDDTAVYYC"
    "ARDYYGSGSYYNPFDYWGQGTLVTVSS"
)


def masked_accuracy(model, residues, every=2):
    """Share of residues (of every second place) that the model fills in rightly, each masked by itself."""
    ids = torch.tensor(residues(HEAVY_CHAIN)["input_ids"])
    places = torch.arange(1, len(ids) - 1, every)
    batch = ids.repeat(len(places), 1)
    batch[torch.arange(len(places)), places] = residues.mask_token_id
    with torch.no_grad():
        logits = model(input_ids=batch, attention_mask=torch.ones_like(batch)).logits
    return float((logits[torch.arange(len(places)), places].argmax(-1) == ids[places]).float().mean())


def variants(residues, count, seed, length=None):
    """The chain with a tenth of its residues replaced, and its start cut off at random: text that needs no corpus."""
    generator = torch.Generator().manual_seed(seed)
    texts = []
    for _ in range(count):
        chain = list(HEAVY_CHAIN)
        for place in torch.randperm(len(chain), generator=generator)[: len(chain) // 10]:
            chain[place] = "ACDEFGHIKLMNPQRSTVWY"[int(torch.randint(20, (), generator=generator))]
        texts.append("".join(chain[int(torch.randint(40, (), generator=generator)) :]))
    return dict(residues(texts, padding=True, return_tensors="pt"))


def train_maps(model, batches, lr=3e-2):
    """Stage 1 by hand: the losses of every layer inside its attention call, one step a batch."""
    optimizer = torch.optim.Adam(hax.freeze_all_but_feature_maps(model), lr=lr)

    def learn(call):
        with torch.enable_grad():
            losses = attention_losses(
                call.query.detach(), call.key.detach(), call.value.detach(), call.feature_map, call.scaling,
                call.key_padding_mask,
            )  # fmt: skip
            error = losses.squared_error.sum() / losses.squared_norm.sum()
            (losses.cross_entropy.mean() + error).backward()

    for batch in batches:
        with torch.no_grad(), hax.softmax_stream(model, learn):
            model(**batch)
        optimizer.step()
        optimizer.zero_grad()


def test_the_checkpoint_is_the_trained_one(sapiens, residues):
    assert masked_accuracy(sapiens, residues) > 0.95


def test_stage_1_by_hand_keeps_the_masked_language_model(sapiens, residues):
    """Conversion, a few dozen steps on mutated chains, and the head still fills in the unmutated one."""
    held_out = [variants(residues, 8, seed=1000)]
    hax.convert(sapiens, num_features=32)
    hax.calibrate(sapiens, [variants(residues, 8, seed=0)])
    before = evaluate_transfer(sapiens, held_out)
    train_maps(sapiens, [variants(residues, 4, seed=step) for step in range(1, 41)])
    after = evaluate_transfer(sapiens, held_out)
    assert after["output_error"] < 0.8 * before["output_error"]
    assert after["kl"] < before["kl"]
    assert masked_accuracy(sapiens, residues) > 0.9


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_fills_in_the_same_residues(sapiens, residues, dtype):
    hax.convert(sapiens, num_features=32)
    hax.calibrate(sapiens, [variants(residues, 8, seed=0)])
    batch = variants(residues, 4, seed=3)
    mask = batch["attention_mask"].bool()
    with torch.no_grad():
        exact = sapiens(**batch).logits[mask]
        half = sapiens.to(dtype)(**batch).logits.float()[mask]
    assert half.isfinite().all()
    assert (half - exact).norm() / exact.norm() < (0.02 if dtype == torch.float16 else 0.1)
    assert (half.argmax(-1) == exact.argmax(-1)).float().mean() > 0.9


@torch.no_grad()
def test_padding_does_not_change_the_residues_of_a_shorter_chain(sapiens, residues):
    hax.convert(sapiens, num_features=32)
    batch = variants(residues, 6, seed=5)
    together = sapiens(**batch).logits
    for ids, mask, logits in zip(batch["input_ids"], batch["attention_mask"].bool(), together, strict=True):
        alone = sapiens(input_ids=ids[mask][None], attention_mask=mask[mask][None].long()).logits[0]
        assert (logits[mask] - alone).norm() / alone.norm() < 1e-4


def test_saved_and_opened_again_with_its_head_and_in_a_pipeline(sapiens, residues, tmp_path):
    hax.convert(sapiens, num_features=32)
    hax.calibrate(sapiens, [variants(residues, 8, seed=0)])
    sapiens.save_pretrained(tmp_path)
    residues.save_pretrained(tmp_path)
    again = AutoModelForMaskedLM.from_pretrained(tmp_path)
    batch = variants(residues, 4, seed=3)
    with torch.no_grad():
        assert torch.equal(again(**batch).logits, sapiens(**batch).logits)
    weights = again.state_dict()
    assert weights.keys() == sapiens.state_dict().keys()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in sapiens.state_dict().items())
    fill = pipeline("fill-mask", model=str(tmp_path), top_k=1)
    answer = fill("".join(HEAVY_CHAIN[:50]) + "<mask>" + HEAVY_CHAIN[51:])[0]
    assert answer["token_str"] in "ACDEFGHIKLMNPQRSTVWY" and 0 < answer["score"] <= 1
