"""The tested model types, in a file that imports nothing. To add one, add a line and its tests."""

FAMILIES = {
    "bert": "BertSelfAttention",
    "roberta": "RobertaSelfAttention",
    "xlm-roberta": "XLMRobertaSelfAttention",
    "distilbert": "DistilBertSelfAttention",
    "electra": "ElectraSelfAttention",
    "gpt2": "GPT2Attention",
    "gpt_neox": "GPTNeoXAttention",
    "llama": "LlamaAttention",
    "qwen2": "Qwen2Attention",
    "qwen3": "Qwen3Attention",
    "mistral": "MistralAttention",
}
"""Model types and the class names of their self-attention modules, to which the conversion adds ``feature_map``."""
