"""The native op: linear-time attention on softmax features, in C++ for CPUs. It is optional.

:mod:`.library` finds and loads the compiled library, :mod:`.operators` wraps it as torch operators, and :mod:`.build`
compiles it. Without it torch's own operations compute the same.
"""

from .build import build_native_op
from .library import describe_native_op, native_op_loaded, plain_forms

__all__ = ["build_native_op", "describe_native_op", "native_op_loaded", "plain_forms"]
