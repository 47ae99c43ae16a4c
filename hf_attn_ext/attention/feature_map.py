"""The base class of feature maps.

A feature map turns queries and keys into features, whose dot products are the attention kernel.
"""

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
    """Features as a product, ``phi = exp(log_scale) * values``, which keeps exponentials in range.

    Attributes:
        log_scale: (B, H, N, G), or None for 0. G divides feature_dim; feature ``j`` has the exponent ``j % G``.
        values: (B, H, N, feature_dim), or None for 1, with G = feature_dim. At least one of the two is a tensor.
        bound: (B, H, N, M), group norms of ``values`` that bound the kernel, ``|values_q . values_k| <= bound_q .
            bound_k``, with G = M or G = 1. None: they are all 1 with M = G, or with M = 1 if ``log_scale`` is None.
            Only read for ``signed`` kernels.
    """

    log_scale: Tensor | None
    values: Tensor | None
    bound: Tensor | None = None


class SoftmaxFeatures(NamedTuple):
    """A positive feature map as ``softmax(x weight + bias)``, the form that the native op computes.

    The amplitude of a key is ``norm_weight y norm_matrix y^T + total_weight logsumexp(x weight + bias)``, with
    ``y = x - shift``.

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
    """Base class of all attention kernels: ``kernel(q, k) = phi_query(q) . phi_key(k)``.

    A subclass implements :meth:`forward` and sets ``signed``. Its inputs are float32 or float64, and scaled so that
    the softmax to be approximated is ``exp(q . k / sqrt(head_dim))``.

    Args:
        num_heads: H, attention heads of the layer.
        head_dim: d, width of a head's queries and keys.
        num_features: n, number of frequencies or projections.
        feature_dim: F, width of the features that :meth:`forward` returns.
        rho: floor of the normaliser, 0 to 1, see ``attention/normaliser.py``; only used for ``signed`` kernels.

    Attributes:
        kernel: the registered name.
        signed: True if features can be negative, so that their products may cancel; the normaliser then gets a floor.
        uses_positions: True if features depend on a token's position. :meth:`forward` and the function that
            :meth:`bind` returns then take ``positions`` (B, N), int64, counted over real tokens from 0.
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
        # a class that overrides forward or bind, but not softmax_features, computes other features than those
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
        """Return the features of queries or keys.

        Args:
            x: (B, H, N, head_dim), float32 or float64.
            side: "query" or "key".

        Returns:
            :class:`Features` of width ``feature_dim`` in the dtype of ``x``.
        """
        raise NotImplementedError

    def bind(self, side: Side, dtype: torch.dtype) -> Callable[..., Features]:
        """Return the feature map of one side, prepared for one attention call, which applies it to blocks of tokens.

        Override it to do work once per call, such as multiplying matrices or casting parameters.

        Args:
            side: "query" or "key".
            dtype: of the tokens.

        Returns:
            A function of ``x``, and of ``positions`` if ``uses_positions``, that returns what :meth:`forward` does.
        """
        if self.uses_positions:
            # forward takes positions here, see the class's docstring
            return lambda x, positions: self.forward(x, side, positions)  # type: ignore[call-arg]
        return partial(self.forward, side=side)

    def softmax_features(self, dtype: torch.dtype) -> SoftmaxFeatures | None:
        """Return both sides of the map as softmax features in ``dtype``; None if it cannot be written so.

        It is not used for a subclass that overrides :meth:`forward` or :meth:`bind` and not this method.
        """
        return None

    @classmethod
    def from_saved(cls, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """Return the current kernel name and options for the options of a saved configuration.

        Override it when a kernel or an option is renamed.
        """
        return cls.kernel, dict(options)

    @torch.no_grad()
    def calibrate(self, statistics: QKStatistics) -> None:
        """Initialise the parameters in place from moments of real queries and keys; the base class changes nothing."""

    def extra_repr(self) -> str:
        """Return the sizes that ``repr`` shows."""
        return (
            f"{self.num_heads} heads x {self.head_dim}, num_features={self.num_features}, "
            f"feature_dim={self.feature_dim}"
        )


def softmax_and_log(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``softmax(x)`` over the last dimension and ``logsumexp(x)`` (..., 1), which costs two maxima more."""
    share, log = _SoftmaxAndLog.apply(x)  # type: ignore[no-untyped-call]  # torch does not annotate Function.apply
    return share, log


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
        gradient: Tensor = share * (grad_share - (torch.linalg.vecdot(grad_share, share)[..., None] - grad_log))
        return gradient
