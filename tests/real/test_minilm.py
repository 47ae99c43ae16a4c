"""MiniLM, a trained English encoder: 6 layers x 12 heads x 32, on review sentences."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from benchmarks.assets import ensure
from hf_attn_ext import integration as hax
from hf_attn_ext.attention import list_kernels
from hf_attn_ext.training import distill

ROOT = Path(__file__).parents[2]
WIDTHS = {"flexformer_sq": 8, "performer": 128, "uniform": 1}  # others 64: feature_dim 128, or 136
KERNELS = [name for name in list_kernels() if name in {*WIDTHS, "hedgehog"} or name.startswith("flexformer")]

# Kernels whose sums can cancel (or, squared, nearly vanish) magnify rounding about twentyfold.
SIGNED = ("flexformer_s", "flexformer_n", "flexformer_sq")
# Relative distance of the last hidden states from float32's. The softmax model: 0.0015 (fp16), 0.012 (bf16).
TOLERANCE = {torch.float16: 0.005, torch.bfloat16: 0.04}
SIGNED_TOLERANCE = {torch.float16: 0.1, torch.bfloat16: 0.4}


def converted(model, batch, kernel):
    """``model`` with calibrated maps of ``kernel`` in every layer."""
    hax.convert(model, kernel=kernel, num_features=WIDTHS.get(kernel, 64))
    hax.calibrate(model, [batch])
    return model


def hidden(model, inputs):
    with torch.no_grad():
        hidden = model.base_model(**inputs).last_hidden_state
    return hidden.to(torch.promote_types(hidden.dtype, torch.float32))


def distance(one, two):
    return float((one - two).norm() / two.norm())


@torch.no_grad()
def test_convert_and_revert_leave_the_trained_weights_and_outputs_as_they_were(minilm, batch):
    weights = {name: tensor.clone() for name, tensor in minilm.state_dict().items()}
    before = minilm(**batch).logits
    hax.convert(minilm)
    assert len(hax.converted_layers(minilm)) == 6
    assert weights.keys() < minilm.state_dict().keys()
    assert all(torch.equal(minilm.state_dict()[name], tensor) for name, tensor in weights.items())
    assert not torch.equal(minilm(**batch).logits, before)
    hax.revert(minilm)
    assert minilm.state_dict().keys() == weights.keys()
    assert torch.equal(minilm(**batch).logits, before)


@pytest.mark.parametrize("kernel", KERNELS)
def test_padding_left_right_inside_and_batch_size_change_nothing(minilm, batch, kernel):
    """Through the whole model, six layers."""
    converted(minilm, batch, kernel)
    check_padding(minilm, batch, 1e-4)
    check_padding(minilm.double(), batch, 1e-10)


def check_padding(model, batch, tolerance):
    ids, mask = batch["input_ids"], batch["attention_mask"].bool()
    right = hidden(model, batch)
    generator = torch.Generator().manual_seed(0)
    for row in range(0, len(ids), 2):
        real = ids[row][mask[row]]
        alone = hidden(model, {"input_ids": real[None], "attention_mask": torch.ones_like(real)[None]})[0]
        assert distance(right[row][mask[row]], alone) < tolerance
        left = torch.arange(len(real)) + 9
        inside = torch.randperm(len(real) + 9, generator=generator)[: len(real)].sort().values
        for places in (left, inside):
            padded, is_real = torch.zeros(2, 1, len(real) + 9, dtype=torch.long)
            padded[0, places], is_real[0, places] = real, 1
            found = hidden(model, {"input_ids": padded, "attention_mask": is_real})[0, places]
            assert distance(found, alone) < tolerance


@pytest.mark.parametrize("kernel", KERNELS)
def test_fp16_bf16_and_autocast_are_finite_and_near_float32(minilm, batch, kernel):
    converted(minilm, batch, kernel)
    mask = batch["attention_mask"].bool()
    exact = hidden(minilm, batch)[mask]
    weights = {name: tensor.clone() for name, tensor in minilm.state_dict().items()}
    for dtype, tolerance in (SIGNED_TOLERANCE if kernel in SIGNED else TOLERANCE).items():
        with torch.autocast("cpu", dtype):
            autocast = hidden(minilm, batch)[mask]
        half = hidden(minilm.to(dtype), batch)[mask]
        minilm.float().load_state_dict(weights)
        for values in (autocast, half):
            assert values.isfinite().all()
            assert distance(values, exact) < tolerance


READER = """
import sys, torch
import hf_attn_ext.integration
from transformers import AutoModelForSequenceClassification

for folder in sys.argv[1:]:
    inputs, expected = torch.load(folder + "/expected.pt")
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    with torch.no_grad():
        assert torch.equal(model(**inputs).logits, expected), folder
"""


def test_saved_whole_sharded_and_in_half_precision_a_fresh_process_gives_the_same_bits(minilm, batch, tmp_path):
    converted(minilm, batch, "flexformer_p")
    kinds = {"sharded": (torch.float32, "30MB"), "half": (torch.float16, "1GB"), "bf16": (torch.bfloat16, "1GB")}
    for name, (dtype, size) in kinds.items():
        minilm.to(dtype).save_pretrained(tmp_path / name, max_shard_size=size)
        with torch.no_grad():
            torch.save((dict(batch), minilm(**batch).logits), tmp_path / name / "expected.pt")
        minilm.float()
    folders = [str(tmp_path / name) for name in kinds]
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 1
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": str(torch.get_num_threads())}
    done = subprocess.run([sys.executable, "-c", READER, *folders], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


def test_a_truncated_weights_file_is_one_clear_error(minilm, tmp_path):
    hax.convert(minilm).save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    with pytest.raises(ValueError, match=r"model.safetensors"):
        AutoModelForSequenceClassification.from_pretrained(tmp_path)


def test_calibration_and_stage_1_come_nearer_to_softmax_on_films_not_trained_on(tmp_path):
    reviews = ensure("reviews")
    result = distill(
        {
            "model": {"name": str(ensure("minilm"))},
            "output": {"folder": str(tmp_path / "run"), "progress": False},
            "data": {
                "path": str(reviews),
                "train": "train.csv",
                "validation": "validation.csv",
                "max_length": 48,
                "max_eval_examples": 64,
                "group_column": "movie",
            },
            "stage1": {"steps": 12, "batch_size": 8, "lr": 3e-2, "evaluate_every": 12, "calibration_batches": 4},
            "stage2": {"steps": 0},
        }
    ).results["transfer"]
    assert result["converted"]["output_error"] > 1.15 * result["stage1"]["output_error"]
    assert result["converted"]["kl"] > result["stage1"]["kl"]
    assert result["stage1"]["output_error"] < 0.75  # 1 would be an output of zeros
