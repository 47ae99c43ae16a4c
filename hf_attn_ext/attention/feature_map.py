"""What every feature map is: per head and layer, queries and keys to features whose dot products are the kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from hf_attn_ext.errors import AttnExtError

from .statistics import QKStatistics

Side = Literal["query", "key"]


class Features(NamedTuple):
    """Features in factored form, ``phi = exp(log_scale) * values``, so that exponentials can be stabilised.

    Attributes:
        log_scale: (B, H, N, G), or None for 0; G divides feature_dim, and feature ``j`` has the exponent ``j % G``.
        values: (B, H, N, feature_dim), or None for 1, with G = feature_dim. Not both are None.
        bound: group norms of ``values`` that bound the kernel, ``|values_q . values_k| <= bound_q . bound_k``, of
            shape (B, H, N, M) with G = M or G = 1; None where they are all 1 with M = G, or, without ``log_scale``,
            with M = 1. Only read where ``signed``.
    """

    log_scale: Tensor | None
    values: Tensor | None
    bound: Tensor | None = None


class SoftmaxFeatures(NamedTuple):
    """A positive map written as ``softmax(x weight + bias)``, the form that the native op takes.

    A key's amplitude is ``norm_weight y norm_matrix y^T + total_weight logsumexp(x weight + bias)``, ``y = x - shift``.

    Attributes:
        query_weight, key_weight: (H, d, F).
        query_bias, key_bias: (H, F).
        norm_matrix: (H, d, d), symmetric.
        shift: (H, d).
        norm_weight, total_weight: (H,).
    """

    query_weight: Tensor
    query_bias: Tensor
    key_weight: Tensor
    key_bias: Tensor
    norm_matrix: Tensor
    shift: Tensor
    norm_weight: Tensor
    total_weight: Tensor


class FeatureMap(nn.Module):
    """Base class of all kernels: ``kernel(q, k) = phi_query(q) . phi_key(k)``.

    Subclasses implement :meth:`forward` and set ``signed``. Inputs arrive in float32 or float64 (the attention forms
    see to that), already scaled so that the softmax the map stands in for is ``exp(q . k / sqrt(head_dim))``.

    Args:
        num_heads, head_dim, num_features: as in :func:`make_feature_map`.
        feature_dim: the width of the features that :meth:`forward` returns.
        rho: the floor of the normaliser, see ``attention/normaliser.py``; only used where ``signed``.

    Attributes:
        kernel: the registered name.
        signed: True if features can be negative, so that their products may cancel; the normaliser then gets a floor.
        uses_positions: True if features depend on where a token stands. :meth:`forward` and what :meth:`bind` returns
            then take ``positions`` (B, N), int64, counted over real tokens from 0.
        stated_options: options that a configuration always states, also where they have their default.
        affine_maps: names of the submodules (:class:`~hf_attn_ext.attention.affine.AffineMap`) of queries and of keys
            that :func:`hf_attn_ext.fold` merges into a model's projections; None if there are none. A submodule may be
            None after all, by an option.
        folded_options: options that build the map without its affine maps.
        test_options: options under which the shared tests run the kernel, by a suffix of its name in their table.
    """

    kernel: str = ""
    signed: bool = False
    uses_positions: bool = False
    stated_options: tuple[str, ...] = ()
    affine_maps: tuple[str, str] | None = None
    folded_options: ClassVar[Mapping[str, Any]] = {}
    test_options: ClassVar[Mapping[str, Mapping[str, Any]]] = {"": {}}
    _softmax_holds: bool = True

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # a class that overrides the map it inherits, but not what softmax_features says of that, is another map
        first = {
            name: next(number for number, owner in enumerate(cls.__mro__) if name in vars(owner))
            for name in ("softmax_features", "bind", "forward")
        }
        cls._softmax_holds = first["softmax_features"] <= min(first["bind"], first["forward"])

    def __init__(self, num_heads: int, head_dim: int, num_features: int, feature_dim: int, rho: float = 0.0) -> None:
        super().__init__()
        if not 0 <= rho <= 1:
            raise AttnExtError(f"rho must lie between 0 and 1, got {rho!r}")
        self.num_heads, self.head_dim, self.num_features = num_heads, head_dim, num_features
        self.feature_dim, self.rho = feature_dim, rho

    def forward(self, x: Tensor, side: Side) -> Features:
        """Map ``x`` (B, H, N, head_dim) to :class:`Features`; ``side`` says whether x are queries or keys."""
        raise NotImplementedError

    def bind(self, side: Side, dtype: torch.dtype) -> Callable[..., Features]:
        """The map of one side for one call of attention, which applies it to block after block of ``dtype`` tokens.

        A map that can prepare something once (fold matrices, cast parameters) overrides it.
        """
        if self.uses_positions:
            return lambda x, positions: self.forward(x, side, positions)
        return partial(self.forward, side=side)

    def softmax_features(self, dtype: torch.dtype) -> SoftmaxFeatures | None:
        """The same map, both sides, as softmax features in ``dtype``; None for maps that are none.

        Not asked where a subclass overrides :meth:`forward` or :meth:`bind` and not this.
        """
        return None

    @classmethod
    def from_saved(cls, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """The kernel and the options that a saved configuration of this kernel means today.

        Override it where a kernel or an option was renamed.
        """
        return cls.kernel, dict(options)

    @torch.no_grad()
    def calibrate(self, statistics: QKStatistics) -> None:
        """Data-aware initialisation in place, from moments of real queries and keys. The base class leaves all
        as is.
        """

    def extra_repr(self) -> str:
        return (
            f"{self.num_heads} heads x {self.head_dim}, num_features={self.num_features}, "
            f"feature_dim={self.feature_dim}"
        )


def softmax_and_log(x: Tensor) -> tuple[Tensor, Tensor]:
    """``softmax(x)`` over the last dimension, and ``logsumexp(x)`` (..., 1) at the price of two maxima."""
    return _SoftmaxAndLog.apply(x)


class _SoftmaxAndLog(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        share = x.softmax(-1)
        # log p_j = x_j - logsumexp(x) at the largest, which is at least 1 / width
        return share, x.amax(-1, keepdim=True) - share.amax(-1, keepdim=True).log()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(output[0])

    @staticmethod
    def backward(ctx: Any, grad_share: Tensor, grad_log: Tensor) -> Tensor:
        (share,) = ctx.saved_tensors
        return share * (grad_share - (torch.linalg.vecdot(grad_share, share)[..., None] - grad_log))
