"""Published linear checkpoints opened by the class of Transformers as plain softmax, with a warning at most.

Our folder has its own model type, so Auto classes never pick the class of Transformers. Code that names such a class
still opens the folder (Transformers only warns about the type, which a card must say); the reader can then see what was
left out.
"""

import json
import logging

import pytest
from transformers import AutoConfig, AutoModelForMaskedLM, RobertaForMaskedLM

from hf_attn_ext import integration as hax
from tests.integration import tiny


def test_auto_classes_never_open_a_converted_folder_as_softmax(tmp_path):
    hax.convert(tiny.tiny_model(RobertaForMaskedLM), tiny.KERNEL).save_pretrained(tmp_path)
    assert AutoConfig.from_pretrained(tmp_path).model_type == "attn_ext_roberta"
    assert hax.is_converted(AutoModelForMaskedLM.from_pretrained(tmp_path))
    settings = json.loads((tmp_path / "config.json").read_text())
    assert "_attn_implementation" not in settings and settings["attn_ext"]["kernel"] == "flexformer_p"


def test_a_stock_class_named_outright_reports_our_tensors(tmp_path, caplog):
    hax.convert(tiny.tiny_model(RobertaForMaskedLM), tiny.KERNEL).save_pretrained(tmp_path)
    logging.getLogger("transformers").propagate = True
    with caplog.at_level(logging.WARNING, "transformers"):
        _, info = RobertaForMaskedLM.from_pretrained(tmp_path, output_loading_info=True)
    assert info["unexpected_keys"] and all(".feature_map." in key for key in info["unexpected_keys"])
    assert "attn_ext_roberta" in caplog.text


@pytest.mark.parametrize("wrong", ["sdpa", "eager"])
def test_no_keyword_turns_it_into_softmax(tmp_path, wrong):
    hax.convert(tiny.tiny_model(RobertaForMaskedLM), tiny.KERNEL).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=wrong):
        AutoModelForMaskedLM.from_pretrained(tmp_path, attn_implementation=wrong)
