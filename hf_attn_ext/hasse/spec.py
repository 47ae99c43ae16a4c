"""A mask with what a model needs to train with it: closed form, position ids, roles, labels and inputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from hf_attn_ext.errors import AttnExtError, short
from hf_attn_ext.hasse.order.bits import BitMatrix
from hf_attn_ext.hasse.order.flow import information_flow
from hf_attn_ext.hasse.order.reading import is_whole, read_list, read_mask

from . import checks, fields
from .inputs import held_tokens, is_input, token
from .roles import role_of
from .text import mask_text

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

    from hf_attn_ext.hasse.tasks.family import TaskFamily

Form = Callable[..., Tensor]

_CHUNK = 1 << 24  # pairs of positions that are computed together


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class MaskSpec:
    """A mask over ``N`` positions; ``True`` means "may attend". The functions of :mod:`.masks` make them.

    Attributes:
        name: the mask's name in :func:`list_masks`.
        tokens: how many tokens of text the positions are about.
        form: the closed form, ``form(q, kv, *tables)``: whether position ``q`` may attend to ``kv``. Integer tensors
            of shapes that broadcast in, a bool tensor out.
        inputs: one per position, as :mod:`.inputs` writes them.
        roles: one word per position, such as ``"clean"`` or ``"mask"``.
        position_ids: int64 ``(N,)``; a mask token has that of the token it predicts.
        labels: ``{position: index of the token that it must predict}``.
        tables: lookup tables of the closed form, tensors of length ``N`` at most.
        names: short names of the positions, such as ``"F3"``; default: the role's letter and the token's number.
        options: the arguments that made the mask.
        task_family: a function that returns the task family from which the mask is derived, or None.
        window: the mask is its dense form cut to pairs at most so many covers apart; None: not cut.

    Raises:
        AttnExtError: a field of the wrong kind or length, an unhashable input, or a label without a position or token.

    Example:
        >>> from hf_attn_ext.hasse import masks
        >>> spec = masks.causal(3)
        >>> spec.dense().int().tolist(), spec.labels
        ([[1, 0, 0], [1, 1, 0], [1, 1, 1]], {0: 1, 1: 2})
    """

    name: str
    tokens: int
    form: Form
    inputs: tuple[Hashable, ...]
    roles: tuple[str, ...]
    position_ids: Tensor
    labels: Mapping[int, int]
    tables: tuple[Tensor, ...] = ()
    names: tuple[str, ...] = ()
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    task_family: Callable[[], TaskFamily] | None = None
    window: int | None = None

    def __post_init__(self) -> None:
        name = self.name
        if not isinstance(name, str) or not name.isprintable():
            raise AttnExtError(f"a mask's name must be a string of one line, got {short(name)}")
        for field in ("inputs", "roles", "names", "tables"):
            self._set(field, tuple(read_list(getattr(self, field), f"{name}: {field}")))
        size = len(self.inputs)
        fields.check_inputs(name, self.inputs)
        self._set("position_ids", fields.read_position_ids(name, self.position_ids))
        fields.check_texts(name, (*self.roles, *self.names))
        if not self.names:
            self._set("names", tuple(map(_position_name, range(size), self.roles, self.inputs)))
        fields.check_lengths(name, size, roles=self.roles, position_ids=self.position_ids, names=self.names)
        fields.check_kinds(name, self.form, self.options, self.task_family, self.tables, self.window)
        self._set("tokens", fields.read_tokens(name, self.tokens))
        self._set("labels", fields.read_targets(name, self.labels, size, self.tokens))

    def _set(self, field: str, value: Any) -> None:
        object.__setattr__(self, field, value)

    @classmethod
    def of_text(cls, n: int, **fields: Any) -> MaskSpec:
        """Return a mask over a text: position i holds token i and has the role ``"token"`` and position id i.

        Args:
            n: the number of tokens.
            **fields: other attributes of the class; may replace ``inputs``, ``roles`` and ``position_ids``.
        """
        inputs, roles = tuple(map(token, range(n))), ("token",) * n
        plain: dict[str, Any] = {"tokens": n, "inputs": inputs, "roles": roles, "position_ids": torch.arange(n)}
        return cls(**plain | fields)

    @classmethod
    def from_mask(
        cls,
        mask: Any,
        labels: Mapping[int, int] | None = None,
        inputs: Sequence[Hashable] | None = None,
        roles: Sequence[str] | None = None,
        position_ids: Any = None,
        tokens: int | None = None,
        name: str = "mask",
        names: Sequence[str] = (),
    ) -> MaskSpec:
        """Return the spec of a dense mask.

        Args:
            mask: bool ``(N, N)``, True = may attend; a tensor, an array or nested lists.
            labels: ``{position: token}``; default: none.
            inputs: default: ``("token", i)`` at position i.
            roles: default: the kind of the input if it has the form of :mod:`.inputs`, else ``"token"``.
            position_ids: ``(N,)``; default: the token number of an input of that form, else i.
            tokens: the vocabulary size; default: one more than the largest token in inputs and labels.
            name, names: see the class.

        Raises:
            AttnExtError: ``mask`` is not a square Boolean matrix, or an argument is invalid.

        Example:
            >>> MaskSpec.from_mask([[1, 0], [1, 1]], labels={0: 1})
            <MaskSpec mask: 2 positions, 2 tokens, 1 labels>
        """
        matrix = torch.as_tensor(read_mask(mask, name).dense(), dtype=torch.bool)
        size = len(matrix)
        inputs = list(map(token, range(size))) if inputs is None else read_list(inputs, f"{name}: inputs")
        if len(inputs) != size:
            raise AttnExtError(f"{name}: {len(inputs)} inputs for {size} positions")
        kinds: list[Any] = [entry[:2] if is_input(entry) else ("token", i) for i, entry in enumerate(inputs)]
        if position_ids is None:
            position_ids = [index for _, index in kinds]
        if roles is None:
            roles = [kind for kind, _ in kinds]
        labels = {} if labels is None else labels
        if tokens is None:
            targets = filter(is_whole, labels.values()) if isinstance(labels, Mapping) else ()
            tokens = 1 + max([*targets, *(index for entry in inputs for index in held_tokens(entry)), size - 1])
        return cls(
            name=name,
            tokens=tokens,
            form=_look_up,
            inputs=tuple(inputs),
            roles=tuple(read_list(roles, f"{name}: roles")),
            position_ids=position_ids,
            labels=labels,
            tables=(matrix,),
            names=tuple(read_list(names, f"{name}: names")),
        )

    def __len__(self) -> int:
        """The number ``N`` of positions."""
        return len(self.inputs)

    def __repr__(self) -> str:
        return f"<MaskSpec {self.title}: {len(self)} positions, {self.tokens} tokens, {len(self.labels)} labels>"

    @property
    def title(self) -> str:
        """The call that makes the mask, such as ``"prefix_lm(n=8, p=3)"``."""
        words = ", ".join(f"{key}={short(value)}" for key, value in self.options.items() if value is not None)
        return f"{self.name}({words})" if words else self.name

    def rows(self, start: int = 0, stop: int | None = None) -> Tensor:
        """Return rows ``start`` to ``stop`` of the mask, bool ``(stop - start, N)``; needs memory for these rows only.

        Raises:
            AttnExtError: not ``0 <= start <= stop <= N``.
        """
        size = len(self)
        stop = size if stop is None else stop
        if not is_whole(start) or not is_whole(stop) or not 0 <= start <= stop <= size:
            raise AttnExtError(
                f"{self.name}: must have 0 <= start <= stop <= {size}, got start={short(start)}, stop={short(stop)}"
            )
        q, kv = torch.arange(start, stop)[:, None], torch.arange(size)[None, :]
        mask = self.form(q, kv, *self.tables)
        if not isinstance(mask, Tensor) or mask.dtype != torch.bool or not _broadcasts(mask, stop - start, size):
            kind = f"{mask.dtype} {tuple(mask.shape)}" if isinstance(mask, Tensor) else short(mask)
            raise AttnExtError(f"{self.name}: the closed form must return torch.bool (rows, columns), got {kind}")
        return mask.expand(stop - start, size)

    def dense(self) -> Tensor:
        """Return the whole mask, bool ``(N, N)``: row i, column j is True where position i may attend to position j."""
        return self.rows().contiguous()

    def bits(self) -> BitMatrix:
        """Return the whole mask in bit rows, which take an eighth of the memory."""
        words = [BitMatrix.from_dense(part.numpy()).words for part in self.chunks()]
        return BitMatrix(np.concatenate(words), len(self))

    def chunks(self) -> Iterator[Tensor]:
        """Yield all rows, in parts of about 16 MiB, bool ``(part, N)``."""
        step = max(1, _CHUNK // len(self))
        for start in range(0, len(self), step):
            yield self.rows(start, min(start + step, len(self)))

    @property
    def mask_mod(self) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
        """The closed form as a ``mask_mod(batch, head, q, kv)`` of flex_attention, with its tables on the CPU."""
        return self.mask_mod_on("cpu")

    def mask_mod_on(self, device: torch.device | str) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
        """:attr:`mask_mod` with its tables on ``device``."""
        form, tables = self.form, tuple(table.to(device) for table in self.tables)

        def mask_mod(batch: Tensor, head: Tensor, q: Tensor, kv: Tensor) -> Tensor:
            return form(q, kv, *tables)

        return mask_mod

    def to_block_mask(self, device: torch.device | str = "cpu", block_size: int = 128) -> BlockMask:
        """Return the mask for ``torch.nn.attention.flex_attention``, the same for every batch row and head.

        It is made from the closed form, ``block_size`` rows at a time, without an ``N x N`` matrix.

        Args:
            device: where the attention is computed.
            block_size: rows and columns of a tile.

        Raises:
            AttnExtError: a block size that is not a whole number from 1 to the larger of N and 128.

        Example:
            >>> from hf_attn_ext.hasse import masks
            >>> masks.causal(256).to_block_mask().sparsity()
            25.0
        """
        from torch.nn.attention.flex_attention import BlockMask

        size = len(self)
        most = max(size, 128)
        if not is_whole(block_size) or not 1 <= block_size <= most:
            raise AttnExtError(f"block_size must be a whole number from 1 to {most}, got {short(block_size)}")
        tiles = -(-size // block_size)
        counts = torch.zeros(tiles, tiles, dtype=torch.int64)
        for tile in range(tiles):
            rows = self.rows(tile * block_size, min((tile + 1) * block_size, size))
            rows = torch.nn.functional.pad(rows, (0, tiles * block_size - size))
            counts[tile] = rows.view(-1, tiles, block_size).sum((0, 2))
        full = counts == block_size * block_size
        partial = (counts > 0) & ~full
        return BlockMask.from_kv_blocks(
            *_ordered(partial, device),
            *_ordered(full, device),
            BLOCK_SIZE=block_size,
            mask_mod=self.mask_mod_on(device),
            seq_lengths=(size, size),
        )

    def check(self, num_layers: int | None = None, raises: bool = False) -> list[checks.Finding]:
        """Return what would spoil a training run; see :func:`.checks.check`."""
        return checks.check(self, num_layers=num_layers, raises=raises)

    def densify(self) -> MaskSpec:
        """Return the same positions with the limit of the flow as their mask: the same diagram, one layer deep.

        Example:
            >>> from hf_attn_ext.hasse import masks
            >>> window = masks.sliding_window(4, 2)
            >>> bool(window.densify().dense()[3, 0]), bool(window.dense()[3, 0])
            (True, False)
        """
        changes: dict[str, Any] = {"form": _look_up, "tables": (information_flow(self),)}
        return dataclasses.replace(self, name=f"dense_{self.name}", window=None, task_family=None, **changes)

    def text(self) -> str:
        """Return the mask as text for a terminal; see :func:`.text.mask_text`."""
        return mask_text(self)


def check_spec(spec: Any) -> None:
    """Raise :class:`AttnExtError` unless ``spec`` is a :class:`MaskSpec`."""
    if not isinstance(spec, MaskSpec):
        raise AttnExtError(
            f"give a MaskSpec, as MaskSpec.from_mask(mask) makes of a mask of your own; got {short(spec)}"
        )


def _broadcasts(mask: Tensor, rows: int, columns: int) -> bool:
    """Return whether a tensor of at most two dimensions broadcasts to a matrix."""
    height, width = (1, 1, *mask.shape)[-2:]
    return mask.ndim <= 2 and height in (1, rows) and width in (1, columns)


def _position_name(position: int, role: str, entry: Hashable) -> str:
    index = entry[1] if isinstance(entry, tuple) and is_input(entry) else position
    return f"{role_of(role).letter}{index}"


def _look_up(q: Tensor, kv: Tensor, matrix: Tensor) -> Tensor:
    return matrix[q, kv]


def _ordered(tiles: Tensor, device: torch.device | str) -> tuple[Tensor, Tensor]:
    """Counts and indices of the set tiles of each row, in flex_attention's layout."""
    indices = torch.argsort(tiles.int(), dim=-1, descending=True, stable=True)
    return tiles.sum(-1).int()[None, None].to(device), indices.int()[None, None].contiguous().to(device)
