"""The compiled kernel for CPUs: linear-time attention on softmax features, one pass a head, in the core's caches.

Optional: without it the plain torch forms compute the same. :mod:`.build` compiles, finds and loads it,
:mod:`.operators` makes torch operators of it, ``forms/fused.py`` decides who takes it.
"""

from .build import build_kernels, describe_kernels, kernels_loaded, plain_forms

__all__ = ["build_kernels", "describe_kernels", "kernels_loaded", "plain_forms"]
