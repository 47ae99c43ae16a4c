"""``hf-attn-ext build``: compile the native op for this machine's processor."""

from __future__ import annotations

import typer


def build() -> None:
    """Compile the native op, which makes the default attention faster on CPUs. Once per machine; takes seconds.

    Needs a C++ compiler (CXX names one). Later runs use the op automatically; HF_ATTN_EXT_COMPILED=0 switches it off.
    """
    from hf_attn_ext.attention import build_native_op

    typer.echo(build_native_op(lambda text: typer.echo(text, err=True)))
