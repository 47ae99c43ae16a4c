"""The native op as torch operators, with gradients and with shapes for ``torch.compile``. Source: ours.

``hf_attn_ext::softmax_attention`` is linear-time attention, causal or not, on features ``softmax(x W + b)`` with an
amplitude for each key; :class:`hf_attn_ext.attention.feature_map.SoftmaxFeatures` describes its weights.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from hf_attn_ext.errors import AttnExtError

from .library import SWITCH, native_library

_POINTERS = {
    "inputs": ("q", "k", "v"),
    "weights": (
        "query_weight",
        "query_bias",
        "key_weight",
        "key_bias",
        "norm_matrix",
        "shift",
        "norm_weight",
        "total_weight",
    ),
    "results": ("sums", "reference", "out", "denominator", "norm"),
    "gradients": ("grad_sums", "grad_q", "grad_k", "grad_v"),
}
_SIZES = ("batch", "heads", "queries", "keys", "head_dim", "features", "value_dim", "causal", "threads", "slots")
_SLOTS = 32  # partial sums of the weights' gradients: as many pieces of work per head
_Strides = ctypes.c_int64 * 3


def _pointers(*names: str) -> list[tuple[str, Any]]:
    return [(name, ctypes.c_void_p) for name in names]


class _Call(ctypes.Structure):
    """``Call`` of head.h, field by field."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in _SIZES),
        ("factor", ctypes.c_double),
        *_pointers(*_POINTERS["inputs"]),
        *((f"{name}_strides", _Strides) for name in _POINTERS["inputs"]),
        *_pointers("real", *_POINTERS["weights"], *_POINTERS["results"], "grad_out"),
        ("grad_strides", _Strides),
        *_pointers(*_POINTERS["gradients"], *(f"grad_{name}" for name in _POINTERS["weights"])),
    ]


def _run(name: str, causal: bool, factor: float, tensors: dict[str, Tensor]) -> None:
    """Call the library's function ``name`` with tensors by the names of their fields."""
    q, k, v = (tensors[name] for name in _POINTERS["inputs"])
    if q.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"softmax_attention takes float32 and float64, got {q.dtype}")
    call = _Call(*q.shape[:3], *k.shape[2:], tensors["query_weight"].shape[-1], v.shape[3], causal)
    call.threads, call.slots, call.factor = torch.get_num_threads(), min(_SLOTS, len(q)), factor
    for field, x in tensors.items():
        if x.device.type != "cpu" or (x.dtype != q.dtype and field != "real"):
            raise TypeError(f"softmax_attention: {field} is {x.dtype} on {x.device}, q {q.dtype} on cpu")
        setattr(call, field, x.data_ptr())
        if field in _POINTERS["inputs"] or field == "grad_out":
            setattr(call, f"{field.removesuffix('_out')}_strides", _Strides(*x.stride()[:3]))
            if x.stride(3) != 1 and x.shape[3] > 1 and x.numel():
                raise ValueError(f"softmax_attention: the last dimension of {field} must be contiguous")
        elif not x.is_contiguous():
            raise ValueError(f"softmax_attention: {field} must be contiguous")
    library = native_library()
    if library is None:
        raise AttnExtError(f"this graph needs the native op: run `hf-attn-ext build`, and don't set {SWITCH}=0")
    kind = "float" if q.dtype == torch.float32 else "double"
    if not getattr(library, f"{name}_{kind}")(ctypes.byref(call)):
        raise MemoryError("softmax_attention: no memory for the threads' scratch space")


@torch.library.custom_op("hf_attn_ext::softmax_attention", mutates_args=(), device_types="cpu")
def softmax_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    real: Tensor | None,
    query_weight: Tensor,
    query_bias: Tensor,
    key_weight: Tensor,
    key_bias: Tensor,
    norm_matrix: Tensor,
    shift: Tensor,
    norm_weight: Tensor,
    total_weight: Tensor,
    sums: Tensor,
    reference: Tensor,
    causal: bool,
    factor: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Compute attention that continues a state. All tensors but ``real`` have one dtype, float32 or float64.

    Args:
        q, k, v: (B, H, Nq, d), (B, H, Nk, d), (B, H, Nk, d_v); causal: Nq = Nk.
        real: (B, Nk) bool, True = real token, or None.
        query_weight .. total_weight: as in ``SoftmaxFeatures``.
        sums, reference: the state before these tokens, (B, H, F, d_v + 1) and (B, H); empty unless causal.
        causal: query i sees keys 0..i.
        factor: multiplies q and k.

    Returns:
        out (B, H, Nq, d_v); the state's sums and reference after; the denominators (B, H, Nq) and the keys' norms
        (B, H, Nk), which only the backward pass reads.
    """
    values = dict(zip(_POINTERS["inputs"], _rows_contiguous(q, k, v), strict=True))
    weights = (query_weight, query_bias, key_weight, key_bias, norm_matrix, shift, norm_weight, total_weight)
    values |= _contiguous(_POINTERS["weights"], weights)
    results = _results(q, k, v, sums, reference)
    results[0].copy_(sums)
    results[1].copy_(reference)
    values |= zip(_POINTERS["results"], results, strict=True)
    _run("forward", causal, factor, values | _mask(real))
    after, largest, out, denominator, norm = results
    return out, after, largest, denominator, norm


@softmax_attention.register_fake
def _(q, k, v, real, query_weight, *rest):  # type: ignore[no-untyped-def]
    *_, sums, reference, _, _ = rest
    after, largest, out, denominator, norm = _results(q, k, v, sums, reference)
    return out, after, largest, denominator, norm


@torch.library.custom_op("hf_attn_ext::softmax_attention_backward", mutates_args=(), device_types="cpu")
def softmax_attention_backward(
    grad_out: Tensor,
    grad_sums: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    real: Tensor | None,
    query_weight: Tensor,
    query_bias: Tensor,
    key_weight: Tensor,
    key_bias: Tensor,
    norm_matrix: Tensor,
    shift: Tensor,
    norm_weight: Tensor,
    total_weight: Tensor,
    sums: Tensor,
    reference: Tensor,
    out: Tensor,
    denominator: Tensor,
    norm: Tensor,
    causal: bool,
    factor: float,
) -> list[Tensor]:
    """Return the gradients of q, k, v, of the weights, and of ``sums``, in this order.

    ``sums`` and ``reference`` are those before the tokens if causal, else those after them.
    """
    grad_out, *inputs = _rows_contiguous(grad_out, q, k, v)
    weights = (query_weight, query_bias, key_weight, key_bias, norm_matrix, shift, norm_weight, total_weight)
    values = {"grad_out": grad_out, **_mask(real)}
    values |= zip(_POINTERS["inputs"], inputs, strict=True)
    values |= _contiguous(_POINTERS["weights"], weights)
    values |= _contiguous(_POINTERS["results"], (sums, reference, out, denominator, norm))
    to_weights = [x.new_empty(min(_SLOTS, len(q)), *x.shape) for x in weights]
    to_inputs = [x.new_empty(x.shape) for x in (q, k, v)]
    to_sums = grad_sums.clone(memory_format=torch.contiguous_format)
    values |= zip(_POINTERS["gradients"], (to_sums, *to_inputs), strict=True)
    values |= {f"grad_{name}": x for name, x in zip(_POINTERS["weights"], to_weights, strict=True)}
    _run("backward", causal, factor, values)
    return [*to_inputs, *(x.sum(0) for x in to_weights), to_sums]


@softmax_attention_backward.register_fake
def _(grad_out, grad_sums, q, k, v, real, *rest):  # type: ignore[no-untyped-def]
    return [x.new_empty(x.shape) for x in (q, k, v, *rest[:8], grad_sums)]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, sums, reference, ctx.causal, ctx.factor = inputs
    out, after, largest, denominator, norm = output
    state = (sums, reference) if ctx.causal else (after, largest)
    ctx.save_for_backward(*tensors, *state, out, denominator, norm)
    ctx.mark_non_differentiable(largest, denominator, norm)


def _backward(ctx: Any, grad_out: Tensor, grad_sums: Tensor, *unused: Any) -> tuple[Tensor | None, ...]:
    if not ctx.causal:
        grad_sums = torch.zeros_like(grad_sums)
    saved = ctx.saved_tensors
    *gradients, to_sums = softmax_attention_backward(grad_out, grad_sums, *saved, ctx.causal, ctx.factor)
    return *gradients[:3], None, *gradients[3:], to_sums if ctx.causal else None, None, None, None


softmax_attention.register_autograd(_backward, setup_context=_setup_context)


def _refuse(ctx: Any, *unused: Any) -> None:
    """Raise; ``once_differentiable`` is not enough, see ``_Gradients`` in ops/causal_product.py."""
    raise AttnExtError(
        f"the native op has no gradients of gradients: use naive_attention or, unless causal, set {SWITCH}=0"
    )


softmax_attention_backward.register_autograd(_refuse)


def _results(q: Tensor, k: Tensor, v: Tensor, sums: Tensor, reference: Tensor) -> list[Tensor]:
    """Empty tensors for ``_POINTERS["results"]``."""
    batch, heads, length, _ = q.shape
    return [
        sums.new_empty(sums.shape),
        reference.new_empty(reference.shape),
        q.new_empty(batch, heads, length, v.shape[3]),
        q.new_empty(batch, heads, length),
        q.new_empty(batch, heads, k.shape[2]),
    ]


def _mask(real: Tensor | None) -> dict[str, Tensor]:
    return {} if real is None else {"real": real.contiguous()}


def _rows_contiguous(*tensors: Tensor) -> list[Tensor]:
    return [x if x.stride(3) == 1 else x.contiguous() for x in tensors]


def _contiguous(names: tuple[str, ...], tensors: tuple[Tensor, ...]) -> dict[str, Tensor]:
    return {name: x.contiguous() for name, x in zip(names, tensors, strict=True)}
