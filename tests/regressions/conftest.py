import hf_attn_ext.integration  # noqa: F401
