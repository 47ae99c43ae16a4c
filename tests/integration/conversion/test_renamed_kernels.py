"""Configurations saved before flexformer_c was split: without a complex frequency they are flexformer_p now."""

import json
import warnings

import pytest
import torch
from transformers import AutoModelForMaskedLM, RobertaForMaskedLM

import hf_attn_ext as hax
from hf_attn_ext.attention import make_feature_map
from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.training.config import DistillConfig
from tests.integration import tiny

BEFORE = {"kernel": "flexformer_c", "num_features": 4, "layers": None, "seed": 0}


def notices(caught):
    return [str(warning.message) for warning in caught if "is called flexformer_p now" in str(warning.message)]


def old_folder(path, kernel, options):
    """A folder as it was saved before the split, with the weights of ``kernel``."""
    model = hax.convert(tiny.tiny_model(RobertaForMaskedLM), kernel, num_features=4)
    model.save_pretrained(path)
    for name in ("config.json", "attn_ext_manifest.json"):
        content = json.loads((path / name).read_text())
        content["attn_ext"] = {**BEFORE, "kernel_options": options}
        (path / name).write_text(json.dumps(content))
    return model


@pytest.mark.parametrize("options", [{}, {"complex_share": 0.0, "rho": 0.3, "imaginary_std": 0.2}])
def test_a_folder_of_before_without_complex_frequencies_opens_with_one_notice(tmp_path, options):
    model = old_folder(tmp_path / "old", {"kernel": "flexformer_p"}, options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loaded = AutoModelForMaskedLM.from_pretrained(tmp_path / "old")
        out = loaded(**tiny.inputs()).logits
        loaded.save_pretrained(tmp_path / "old")  # over the old manifest
        again = AutoModelForMaskedLM.from_pretrained(tmp_path / "old")
    assert len(notices(caught)) == 1
    assert loaded.config.attn_ext == again.config.attn_ext == model.config.attn_ext
    assert torch.equal(out, model(**tiny.inputs()).logits)


def test_a_folder_of_before_with_complex_frequencies_keeps_its_kernel(tmp_path):
    options = {"complex_share": 0.5}
    model = old_folder(tmp_path / "old", {"kernel": "flexformer_c", "kernel_options": options}, options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loaded = AutoModelForMaskedLM.from_pretrained(tmp_path / "old")
    assert not notices(caught)
    assert loaded.config.attn_ext["kernel"] == "flexformer_c" and hax.converted_layers(loaded)[0].feature_map.signed
    assert torch.equal(loaded(**tiny.inputs()).logits, model(**tiny.inputs()).logits)


def test_a_distillation_file_of_before_names_flexformer_p():
    file = {"model": {"name": "a"}, "output": {"folder": "b"}, "data": {}, "kernel": {"kernel": "flexformer_c"}}
    with pytest.warns(UserWarning, match="my.yaml: .*flexformer_p now"):
        config = DistillConfig.from_dict(file, where="my.yaml")
    assert config.kernel == hax.AttnExtConfig(kernel="flexformer_p")


@pytest.mark.parametrize("given", [hax.AttnExtConfig(kernel="flexformer_c"), {"kernel": "flexformer_c"}, None])
def test_in_code_flexformer_c_has_complex_frequencies_and_stays_so(tmp_path, given):
    model = tiny.tiny_model(RobertaForMaskedLM)
    hax.convert(model, given, num_features=4, **({} if given else {"kernel": "flexformer_c"}))
    assert model.config.attn_ext["kernel_options"] == {"complex_share": 0.5}
    model.save_pretrained(tmp_path / "new")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loaded = AutoModelForMaskedLM.from_pretrained(tmp_path / "new")
    assert not notices(caught) and loaded.config.attn_ext == model.config.attn_ext
    assert torch.equal(loaded(**tiny.inputs()).logits, model(**tiny.inputs()).logits)


@pytest.mark.parametrize("share", [0.0, -0.5, 1.5])
def test_a_share_that_is_none_names_flexformer_p(share):
    with pytest.raises(AttnExtError, match=f"complex_share must be above 0.*{share}.*flexformer_p"):
        make_feature_map("flexformer_c", 2, 4, 3, complex_share=share)
