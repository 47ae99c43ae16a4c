"""``hf-attn-ext build``: compile the attention kernel for this machine's processor."""

from __future__ import annotations

import typer


def build() -> None:
    """Compile the CPU kernel of the default attention, once for this machine; it is used by itself afterwards.

    Needs a C++ compiler (CXX names one), for some seconds. HF_ATTN_EXT_COMPILED=0 switches the kernel off.
    """
    from hf_attn_ext.attention import build_kernels

    typer.echo(build_kernels(lambda text: typer.echo(text, err=True)))
