"""The families under masks, and what their tests share."""

from transformers import (
    BertModel,
    DistilBertModel,
    ElectraModel,
    GPT2LMHeadModel,
    GPTNeoXForCausalLM,
    LlamaForCausalLM,
    MistralForCausalLM,
    Qwen2ForCausalLM,
    Qwen3ForCausalLM,
    RobertaModel,
    XLMRobertaModel,
)

from tests.integration import tiny

ENCODERS = [BertModel, RobertaModel, XLMRobertaModel, DistilBertModel, ElectraModel]
DECODERS = [
    GPT2LMHeadModel, GPTNeoXForCausalLM, LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, MistralForCausalLM,
]  # fmt: skip
BACKENDS = ["sdpa", "eager", "flex"]


def first(output):
    return tiny.logits_of(output)[0]
