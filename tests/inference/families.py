"""The heads that predict tokens, one a family."""

from transformers import (
    BertForMaskedLM,
    DistilBertForMaskedLM,
    ElectraForMaskedLM,
    GPT2LMHeadModel,
    GPTNeoXForCausalLM,
    LlamaForCausalLM,
    MistralForCausalLM,
    Qwen2ForCausalLM,
    Qwen3ForCausalLM,
    RobertaForMaskedLM,
    XLMRobertaForMaskedLM,
)

ENCODERS = [BertForMaskedLM, RobertaForMaskedLM, XLMRobertaForMaskedLM, DistilBertForMaskedLM, ElectraForMaskedLM]
DECODERS = [
    GPT2LMHeadModel, GPTNeoXForCausalLM, LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, MistralForCausalLM,
]  # fmt: skip
MODELS = ENCODERS + DECODERS


class Tokens:
    """What a collator asks of a tokenizer."""

    pad_token_id, mask_token_id = 0, 39
