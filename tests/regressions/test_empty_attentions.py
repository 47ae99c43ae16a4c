"""output_attentions=True elsewhere gave an empty tuple without an error."""

from transformers import BertForMaskedLM, RobertaModel

from hf_attn_ext import integration as hax
from tests.integration import tiny


def test_never_an_empty_tuple():
    model = hax.convert(tiny.tiny_model(RobertaModel), tiny.KERNEL)
    assert [tuple(x.shape) for x in model(**tiny.inputs(), output_attentions=True).attentions] == [(3, 2, 7, 7)] * 2
    head = hax.convert(tiny.tiny_model(BertForMaskedLM), tiny.KERNEL, layers=[0])
    assert len(head(**tiny.inputs(), output_attentions=True).attentions) == 2


def test_not_asked_for_not_computed():
    model = hax.convert(tiny.tiny_model(RobertaModel), tiny.KERNEL)
    model(**tiny.inputs(), output_attentions=True)
    assert "attentions" not in model(**tiny.inputs())
