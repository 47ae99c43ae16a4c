"""The command line ``hf-attn-ext``; see :mod:`hf_attn_ext.cli.main`."""
