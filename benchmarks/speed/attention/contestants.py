"""Who takes part: softmax in two ways, performer-pytorch from PyPI, and every kernel of ours at about equal width."""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import inspect
import io
import warnings
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from hf_attn_ext.attention import linear_attention, list_kernels, make_feature_map, native_op_loaded, plain_forms
from hf_attn_ext.attention.registry import check_kernel
from hf_attn_ext.errors import AttnExtError

SOFTMAX, PACKAGE, FLEXFORMER, OTHER, CONTROL = "softmax", "performer-pytorch", "flexformer", "other", "control"
_FAMILIES = (FLEXFORMER, OTHER, CONTROL)
PLAIN = " (plain)"  # ends the name of a kernel that the native op could compute, when torch's own forms do
FORWARD, BOTH = "forward", "forward+backward"
PASSES = (FORWARD, BOTH)
DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclasses.dataclass(frozen=True)
class Workload:
    """One layer's attention.

    Attributes:
        batch, heads, head_dim: sizes of q, k and v, (batch, heads, length, head_dim).
        feature_dim: the width that kernels and performer-pytorch get where they let one choose.
        dtype: a name from ``DTYPES``.
        device: "cpu" or "cuda".
        seed: determines inputs and kernels.
        longest: the longest sequence; kernels that must know it (their ``max_length``) are told.
    """

    batch: int = 1
    heads: int = 12
    head_dim: int = 64
    feature_dim: int = 128
    dtype: str = "float32"
    device: str = "cpu"
    seed: int = 0
    longest: int = 4096

    def tensors(self, length: int) -> list[Tensor]:
        """Standard normal q, k, v, and a gradient of the output, each (batch, heads, length, head_dim)."""
        generator = torch.Generator().manual_seed(self.seed + length)
        size = (self.batch, self.heads, length, self.head_dim)
        tensors = [torch.randn(size, generator=generator) for _ in range(4)]
        return [x.to(self.device, DTYPES[self.dtype]) for x in tensors]


@dataclasses.dataclass(frozen=True)
class Contestant:
    """One row of the report.

    Attributes:
        name: sdpa, eager, performer-pytorch, or a kernel's, perhaps with ``PLAIN``.
        family: for the picture's colours.
        num_features, feature_dim: what the kernel was asked for, and its width; None for softmax.
        note: what exactly was run, where the name does not say it.
        absent: why it cannot run here, or None.
        compiled: whether the native op computes it.
    """

    name: str
    family: str
    num_features: int | None = None
    feature_dim: int | None = None
    note: str = ""
    absent: str | None = None
    compiled: bool = False

    @property
    def kernel(self) -> str:
        """The registered name of a kernel of ours."""
        return self.name.removesuffix(PLAIN)

    def build(self, workload: Workload, causal: bool) -> Any:
        """Return the attention: a callable of (q, k, v) with ``parameters()``."""
        if self.family == SOFTMAX:
            attention = Eager(causal) if self.name == "eager" else Sdpa(causal)
        elif self.family == PACKAGE:
            attention = _package_attention(workload, self.feature_dim, causal)
        else:
            attention = Linear(self.kernel, self.num_features, workload, causal, self.compiled)
        return attention.to(workload.device)


class Sdpa(nn.Module):
    """torch's fused attention, whichever backend it picks."""

    def __init__(self, causal: bool):
        super().__init__()
        self.causal = causal

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return fused softmax attention, (B, H, N, d)."""
        return functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)


class Eager(nn.Module):
    """Softmax with its N x N matrix, as transformers' ``eager_attention_forward``; the causal mask is added."""

    def __init__(self, causal: bool):
        super().__init__()
        self.causal, self.mask = causal, None

    def prepare(self, q: Tensor) -> None:
        """Make the mask of q's length; a model makes it once for all layers, so it is outside of what is measured."""
        if self.causal:
            size = (1, 1, q.shape[2], q.shape[2])
            self.mask = torch.full(size, torch.finfo(q.dtype).min, dtype=q.dtype, device=q.device).triu_(1)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return softmax attention from its N x N weights, (B, H, N, d)."""
        weights = torch.matmul(q, k.transpose(-1, -2)) * q.shape[-1] ** -0.5
        if self.mask is not None:
            weights = weights + self.mask
        weights = functional.softmax(weights, dim=-1).type(v.dtype)
        return torch.matmul(weights, v)


class Linear(nn.Module):
    """A kernel of ours in its linear-time form, untrained."""

    def __init__(self, kernel: str, num_features: int, workload: Workload, causal: bool, compiled: bool):
        super().__init__()
        sizes = (workload.heads, workload.head_dim, num_features, workload.seed)
        self.feature_map = make_feature_map(kernel, *sizes, **kernel_options(kernel, workload.longest))
        self.causal = causal
        self.forms = contextlib.nullcontext if compiled else plain_forms
        if workload.dtype == "float64":
            self.double()

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return linear attention, (B, H, N, d)."""
        with self.forms():
            return linear_attention(q, k, v, self.feature_map, causal=self.causal)


def contestants(workload: Workload, kernels: Sequence[str] | None = None) -> list[Contestant]:
    """Return all contestants: sdpa, eager, performer-pytorch (marked absent where it isn't installed), and ``kernels``.

    The kernels that the native op computes here take part a second time without it.

    Args:
        workload: sizes; widths are chosen for it.
        kernels: names from :func:`list_kernels`; None takes all.

    Raises:
        AttnExtError: an unknown kernel, or one named twice.
    """
    names = list_kernels() if kernels is None else list(kernels)
    check_kernels(names)
    ours = [row for name in sorted(names, key=family_rank) for row in _kernel(name, workload)]
    return [Contestant("sdpa", SOFTMAX), Contestant("eager", SOFTMAX), _package(workload), *ours]


def check_kernels(names: Sequence[str]) -> None:
    """Raise :class:`AttnExtError` for an unknown kernel, or one named twice."""
    for name in names:
        check_kernel(name, 1, {})
        if names.count(name) > 1:
            raise AttnExtError(f"kernel {name!r} is named twice")


def kernel_options(kernel: str, longest: int) -> dict[str, int]:
    """Options of the kernel that depend on the sequences: ``max_length``, if it has that option."""
    known = inspect.signature(check_kernel(kernel, 1, {}).__init__).parameters
    return {"max_length": longest} if "max_length" in known else {}


def family_of(kernel: str) -> str:
    """The family of a kernel of ours."""
    return FLEXFORMER if kernel.startswith("flexformer") else CONTROL if kernel == "uniform" else OTHER


def family_rank(kernel: str) -> int:
    """A key to sort kernels by family: Flexformer first, the control last."""
    return _FAMILIES.index(family_of(kernel))


def make_call(attention: Any, inputs: Sequence[Tensor], which: str) -> Callable[[], None]:
    """Return the call that is measured.

    Args:
        attention: from :meth:`Contestant.build`.
        inputs: q, k, v and the output's gradient from :meth:`Workload.tensors`; shared by all contestants, unchanged.
        which: "forward", without gradients; or "forward+backward", with gradients of q, k, v and of the kernel's own
            parameters, as in training.
    """
    *qkv, gradient = inputs
    if hasattr(attention, "prepare"):
        attention.prepare(qkv[0])
    if which == FORWARD:

        def forward() -> None:
            with torch.no_grad():
                attention(*qkv)

        return forward
    leaves = [x.detach().requires_grad_() for x in qkv]
    wanted = [*leaves, *(p for p in attention.parameters() if p.requires_grad)]

    def both() -> None:
        torch.autograd.grad(attention(*leaves), wanted, gradient, allow_unused=True)

    return both


def bytes_needed(contestant: Contestant, workload: Workload, length: int, causal: bool, which: str) -> int | None:
    """About what the two contestants take that don't grow linearly, or hugely, before they are let run; else None.

    ``eager`` holds 2 matrices of N x N a head, 3 for the backward pass; performer-pytorch's causal form for CPUs then
    about 4 numbers for each entry of every token's running sum.
    """
    size = DTYPES[workload.dtype].itemsize
    rows = workload.batch * workload.heads * length
    if contestant.name == "eager":
        return rows * length * size * (3 if which == BOTH else 2)
    if contestant.family == PACKAGE and causal and which == BOTH and not _has_cuda_product():
        return 4 * rows * contestant.feature_dim * workload.head_dim * size
    return None


def _kernel(name: str, workload: Workload) -> list[Contestant]:
    num_features, feature_dim = fit_width(name, workload.head_dim, workload.feature_dim)
    note = "" if feature_dim >= workload.feature_dim else f"its width is fixed at {feature_dim}"
    row = Contestant(name, family_of(name), num_features, feature_dim, note)
    if workload.device != "cpu" or make_feature_map(name, 1, 1, 1).softmax_features(torch.float32) is None:
        return [row]
    if not native_op_loaded():
        return [dataclasses.replace(row, note="torch's own forms; `hf-attn-ext build` compiles a faster kernel")]
    return [
        dataclasses.replace(row, note="by the native op", compiled=True),
        dataclasses.replace(row, name=name + PLAIN, note="torch's own forms"),
    ]


def fit_width(kernel: str, head_dim: int, wanted: int) -> tuple[int, int]:
    """Return the least ``num_features`` that gives a kernel at least ``wanted`` features, and the width it gives.

    A kernel whose width does not depend on it gets ``wanted``.

    Example:
        >>> fit_width("flexformer_sq", 64, 128)  # n(2n + 1)
        (8, 136)
    """

    def width(num_features: int) -> int:
        return make_feature_map(kernel, 1, head_dim, num_features).feature_dim

    if width(1) == width(2):
        return wanted, width(wanted)
    fitting = 1 + bisect.bisect_left(range(1, wanted), wanted, key=width)
    return fitting, width(fitting)


def _package(workload: Workload) -> Contestant:
    base = Contestant(PACKAGE, PACKAGE, workload.feature_dim, workload.feature_dim)
    try:
        version = metadata.version("performer-pytorch")
        _fast_attention()
    except (metadata.PackageNotFoundError, ImportError) as error:
        missing = "performer-pytorch" if isinstance(error, metadata.PackageNotFoundError) else error.name
        reason = f"{missing} is not installed: pip install 'hf-attn-ext[bench]'"
        return dataclasses.replace(base, absent=reason)
    form = "the CUDA product of fast_transformers" if _has_cuda_product() else "causal_linear_attention_noncuda"
    return dataclasses.replace(base, note=f"FastAttention of {version}; causal: {form}")


def _fast_attention() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from performer_pytorch import FastAttention
    return FastAttention


def _package_attention(workload: Workload, feature_dim: int, causal: bool) -> nn.Module:
    torch.manual_seed(workload.seed)  # it draws its projection from the global generator
    with contextlib.redirect_stdout(io.StringIO()):  # it prints that it has no CUDA product
        return _fast_attention()(workload.head_dim, nb_features=feature_dim, causal=causal)


def _has_cuda_product() -> bool:
    try:
        import fast_transformers.causal_product.causal_product_cuda  # noqa: F401
    except ImportError:
        return False
    return True
