"""The public names of the package: heavy parts load when they are asked for; ``hax.distill`` is called and started."""

import subprocess
import sys

import pytest
import torch
from transformers import BertConfig, BertModel

import hf_attn_ext as hax
from hf_attn_ext.training import distill_kernels


def process(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_public_name_is_there():
    for name in hax.__all__:
        assert getattr(hax, name) is not None and name in dir(hax)
    with pytest.raises(AttributeError, match="no attribute 'distil'"):
        _ = hax.distil
    assert hax.MaskSpec and hax.register_mask and hax.probe.ContextSimilarityProbe is hax.ContextSimilarityProbe


@pytest.mark.parametrize(
    "imports",
    [
        "import hf_attn_ext as hax",
        "import hf_attn_ext.distill\nimport hf_attn_ext as hax",
        "import hf_attn_ext as hax\nimport hf_attn_ext.distill",
        "import hf_attn_ext.training\nimport hf_attn_ext as hax\n"
        "from hf_attn_ext import distill\nassert distill is hax.distill",
    ],
)
def test_distill_is_a_module_that_can_be_called(imports):
    code = (
        f"{imports}\nassert callable(hax.distill) and callable(hax.distill.main)\n"
        "try: hax.distill('no-such.yaml')\nexcept hax.AttnExtError as error: print(error)"
    )
    assert "no-such.yaml" in process(code)


def test_the_heavy_parts_are_not_imported_at_once():
    code = "import sys, hf_attn_ext; print(sorted(m for m in sys.modules if m.startswith('hf_attn_ext.')))"
    loaded = process(code)
    for part in ("training", "probe", "hub", "inference", "cli"):
        assert f"'hf_attn_ext.{part}'" not in loaded


class Words:
    """A tokenizer of words, as far as distill_kernels needs one."""

    def __call__(self, texts, **options):
        rows = [[3 + hash(word) % 90 for word in text.split()] for text in texts]
        longest = max(map(len, rows))
        ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
        return {"input_ids": ids, "attention_mask": (ids > 0).long()}


def small() -> BertModel:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32
    )
    config.initializer_range = 0.5
    return BertModel(config)


def test_distill_kernels_on_batches_and_on_texts():
    model, ids = small(), torch.randint(3, 100, (4, 12), generator=torch.Generator().manual_seed(1))
    base = {name: x.clone() for name, x in model.state_dict().items()}
    done = hax.distill_kernels(model, [{"input_ids": ids}], steps=30)
    assert done.model is model and hax.is_converted(model) and len(done.losses) == 30
    assert done.losses[-1] < 0.9 * done.losses[0]
    assert all(torch.equal(model.state_dict()[name], x) for name, x in base.items())  # only the kernels learn
    texts = ["a few words of text", "more words", "and a third text of words"]
    more = distill_kernels(small(), texts, Words(), steps=3, batch_size=2, config=hax.AttnExtConfig(num_features=4))
    assert len(more.losses) == 3 and more.model.config.attn_ext["num_features"] == 4


@pytest.mark.parametrize(
    ("given", "options", "said"),
    [
        ([], {}, "no texts or batches"),
        (["a"], {}, "need the model's tokenizer"),
        ([3], {}, "must be texts, or dictionaries with input_ids, got 3"),
        (["a"], {"tokenizer": Words(), "steps": -1}, "steps must be a whole number"),
        (["a"], {"tokenizer": Words(), "batch_size": 0}, "batch_size must be a whole number"),
    ],
)
def test_mistakes_of_distill_kernels(given, options, said):
    with pytest.raises(hax.AttnExtError, match=said):
        hax.distill_kernels(small(), given, **options)


def test_a_converted_model_keeps_its_configuration():
    model = hax.convert(small(), hax.AttnExtConfig(num_features=4))
    batch = {"input_ids": torch.randint(3, 100, (2, 5))}
    assert hax.distill_kernels(model, batch, steps=1).model.config.attn_ext["num_features"] == 4
    with pytest.raises(hax.AttnExtError, match="converted already"):
        hax.distill_kernels(model, batch, steps=1, config=hax.AttnExtConfig())
