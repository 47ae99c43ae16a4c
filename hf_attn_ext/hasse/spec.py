"""A mask together with what a model needs to train with it: closed form, position ids, roles, labels, inputs.

Inputs say what stands at a position, as tuples ``(kind, token, *tokens it is made of)``, tokens counted from 0:

    ("token", 3)        the embedding of token 3
    ("mask", 3)         the mask token, with the position id of token 3
    ("noisy", 3)        token 3 or the mask token, by chance; only where it is masked does its label count
    ("mean", 3, 2, 4)   the mean of the embeddings of tokens 2 and 4, with the position id of token 3
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from hf_attn_ext.errors import AttnExtError, short
from hf_attn_ext.hasse.order.bits import BitMatrix
from hf_attn_ext.hasse.order.reading import is_whole, read_list, read_mask

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

    from hf_attn_ext.hasse.tasks.family import Family

    from .checks import Finding

Form = Callable[..., Tensor]

_CHUNK = 1 << 24
_MOST_TOKENS = (1 << 63) - 1  # a token's number must fit int64

# The letter that stands for a role in names of positions such as "F3".
LETTERS = {
    "token": "w",
    "prefix": "w",
    "clean": "w",
    "visible": "w",
    "content": "h",
    "query": "g",
    "mask": "m",
    "noisy": "x",
    "forward": "F",
    "backward": "B",
    "prediction": "P",
}


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class MaskSpec:
    """A mask over ``N`` positions; ``True`` means "may attend". The functions of :mod:`.masks` make them.

    Attributes:
        name: the mask's name in :func:`list_masks`.
        tokens: how many tokens of text the positions are about.
        form: the closed form, ``form(q, kv, *tables)``: whether position ``q`` may attend to ``kv``. Integer tensors
            of shapes that broadcast in, a bool tensor out.
        inputs: one tuple a position, as at the top of this file.
        roles: one word a position, such as ``"clean"`` or ``"mask"``.
        position_ids: int64 ``(N,)``; a mask token has that of the token it predicts.
        labels: ``{position: index of the token that it must predict}``.
        tables: tensors that the closed form looks things up in, of length ``N`` at most.
        names: short names of the positions, such as ``"F3"``.
        options: the arguments that made the mask.
        family: makes the family of tasks that the mask is derived from, or None.
        window: the mask is the dense one cut to pairs at most so many covers apart; None: not cut.

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
    family: Callable[[], Family] | None = None
    window: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.isprintable():
            raise AttnExtError(f"a mask's name must be a text of one line, got {short(self.name)}")
        for field in ("inputs", "roles", "names", "tables"):
            self._set(field, tuple(read_list(getattr(self, field), f"{self.name}: {field}")))
        size = len(self.inputs)
        if not size:
            raise AttnExtError(f"{self.name}: a mask needs at least one position, got no inputs")
        for position, entry in enumerate(self.inputs):
            try:
                hash(entry)
            except TypeError:
                where = f"{self.name}: the input at position {position}"
                raise AttnExtError(f"{where} is unhashable: {short(entry)}") from None
        self._set("position_ids", _read_position_ids(self.position_ids, self.name))
        words = (*self.roles, *self.names)
        if not all(isinstance(word, str) and word.isprintable() for word in words):
            raise AttnExtError(f"{self.name}: roles and names must be texts of one line, got {short([*words])}")
        if not self.names:
            self._set("names", tuple(map(_position_name, range(size), self.roles, self.inputs)))
        for field in ("roles", "position_ids", "names"):
            if len(getattr(self, field)) != size:
                raise AttnExtError(f"{self.name}: {len(getattr(self, field))} {field} for {size} positions")
        for field, kind, right in (
            ("form", "a function", callable(self.form)),
            ("options", "a dictionary", isinstance(self.options, Mapping)),
            ("family", "a function or None", self.family is None or callable(self.family)),
            ("tables", "tensors", all(isinstance(table, Tensor) for table in self.tables)),
            ("window", "a whole number or None", self.window is None or (is_whole(self.window) and self.window > 0)),
        ):
            if not right:
                raise AttnExtError(f"{self.name}: {field} must be {kind}, got {short(getattr(self, field))}")
        if not is_whole(self.tokens) or not 1 <= self.tokens <= _MOST_TOKENS:
            raise AttnExtError(
                f"{self.name}: tokens must be a whole number from 1 to 2**63 - 1, got {short(self.tokens)}"
            )
        if not isinstance(self.labels, Mapping):
            raise AttnExtError(f"{self.name}: labels must map positions to tokens, got {short(self.labels)}")
        for position, label in self.labels.items():
            if not is_whole(position) or not is_whole(label):
                raise AttnExtError(
                    f"{self.name}: labels must map positions to tokens, both whole numbers, got "
                    f"{short(position)}: {short(label)}"
                )
            if not 0 <= position < size:
                raise AttnExtError(f"{self.name}: a label is at position {position}; the positions are 0 to {size - 1}")
            if not 0 <= label < self.tokens:
                raise AttnExtError(f"{self.name}: the label at {position} is token {label} of {self.tokens} tokens")
        self._set("tokens", int(self.tokens))
        self._set("labels", {int(position): int(label) for position, label in self.labels.items()})

    def _set(self, field: str, value: Any) -> None:
        object.__setattr__(self, field, value)

    @classmethod
    def of_text(cls, n: int, **fields: Any) -> MaskSpec:
        """A mask over a text as it is: token i at position i, its role ``"token"``, its position id i.

        Args:
            n: tokens.
            fields: the class's other attributes, or other inputs, roles or position ids.
        """
        inputs, roles = tuple(map(token, range(n))), ("token",) * n
        return cls(**{"tokens": n, "inputs": inputs, "roles": roles, "position_ids": torch.arange(n)} | fields)

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
        """A spec from a mask of your own.

        Args:
            mask: bool ``(N, N)``, True = may attend; a tensor, an array or nested lists.
            labels: ``{position: token}``; default: none.
            inputs: default: ``("token", i)`` at position i.
            roles: default: the kind of the input where it is a tuple of this file, else ``"token"``.
            position_ids: ``(N,)``; default: the token of the input where it is such a tuple, else i.
            tokens: default: one more than the largest token that an input or a label names.
            name, names: see the class.

        Raises:
            AttnExtError: not a square Boolean matrix, a length that does not fit, a label where no position is, an
                unhashable input, position ids or labels that are no whole numbers.
        """
        matrix = torch.as_tensor(read_mask(mask, name).dense(), dtype=torch.bool)
        size = len(matrix)
        inputs = list(map(token, range(size))) if inputs is None else read_list(inputs, f"{name}: inputs")
        if len(inputs) != size:
            raise AttnExtError(f"{name}: {len(inputs)} inputs for {size} positions")
        known = [is_input(entry) for entry in inputs]
        if position_ids is None:
            position_ids = [entry[1] if ours else i for i, (entry, ours) in enumerate(zip(inputs, known, strict=True))]
        if roles is None:
            roles = [entry[0] if ours else "token" for entry, ours in zip(inputs, known, strict=True)]
        if not isinstance(labels, Mapping | None):
            raise AttnExtError(f"{name}: labels must map positions to tokens, got {short(labels)}")
        labels = dict(labels or {})
        if tokens is None:
            asked = filter(is_whole, labels.values())
            tokens = 1 + max([*asked, *(t for entry in inputs for t in held_tokens(entry)), size - 1])
        return cls(
            name=name,
            tokens=tokens,
            form=_look_up,
            inputs=inputs,
            roles=roles,
            position_ids=position_ids,
            labels=labels,
            tables=(matrix,),
            names=names,
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
        """Rows ``start`` to ``stop`` of the mask, bool ``(stop - start, N)``; memory for these rows only.

        Raises:
            AttnExtError: not ``0 <= start <= stop <= N``.
        """
        size = len(self)
        stop = size if stop is None else stop
        if not is_whole(start) or not is_whole(stop) or not 0 <= start <= stop <= size:
            raise AttnExtError(f"{self.name}: rows {short(start)} to {short(stop)} of {size} positions do not exist")
        q, kv = torch.arange(start, stop)[:, None], torch.arange(size)[None, :]
        mask = self.form(q, kv, *self.tables)
        whole = isinstance(mask, Tensor) and mask.dtype == torch.bool
        if not whole or torch.broadcast_shapes(mask.shape, (1, 1)) not in _shapes(stop - start, size):
            kind = f"{mask.dtype} {tuple(mask.shape)}" if isinstance(mask, Tensor) else short(mask)
            raise AttnExtError(f"{self.name}: the closed form must return torch.bool (rows, columns), got {kind}")
        return mask.expand(stop - start, size)

    def dense(self) -> Tensor:
        """The whole mask, bool ``(N, N)``: row i, column j is True where position i may attend to position j."""
        return self.rows().contiguous()

    def bits(self) -> BitMatrix:
        """The whole mask in bit rows, an eighth of the memory; what the functions of this floor read."""
        words = [BitMatrix.from_dense(part.numpy()).words for part in self.chunks()]
        return BitMatrix(np.concatenate(words), len(self))

    def chunks(self) -> Iterator[Tensor]:
        """All rows, in parts of about 16 MiB, bool ``(part, N)``."""
        step = max(1, _CHUNK // len(self))
        for start in range(0, len(self), step):
            yield self.rows(start, min(start + step, len(self)))

    @property
    def mask_mod(self) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
        """The closed form as flex_attention wants it: ``mask_mod(batch, head, q, kv)``, tables on the CPU."""
        return self.mask_mod_on("cpu")

    def mask_mod_on(self, device: torch.device | str) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
        """:attr:`mask_mod` with its tables on ``device``."""
        form, tables = self.form, tuple(table.to(device) for table in self.tables)

        def mask_mod(batch: Tensor, head: Tensor, q: Tensor, kv: Tensor) -> Tensor:
            return form(q, kv, *tables)

        return mask_mod

    def to_block_mask(self, device: torch.device | str = "cpu", block_size: int = 128) -> BlockMask:
        """The mask for ``torch.nn.attention.flex_attention``, one for every batch row and head.

        Made from the closed form, ``block_size`` rows at a time: no ``N x N`` matrix is held.

        Args:
            device: where the attention is computed.
            block_size: rows and columns of a tile.

        Raises:
            AttnExtError: a block size that is no whole number from 1 to N, or to 128 where N is smaller.

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

    def check(self, num_layers: int | None = None, raises: bool = False) -> list[Finding]:
        """What a training run would trip over; see :func:`.checks.check`."""
        from .checks import check

        return check(self, num_layers=num_layers, raises=raises)

    def densify(self) -> MaskSpec:
        """The same positions with the limit of the flow as their mask: the same diagram, one layer deep.

        Example:
            >>> from hf_attn_ext.hasse import masks
            >>> window = masks.sliding_window(4, 2)
            >>> bool(window.densify().dense()[3, 0]), bool(window.dense()[3, 0])
            (True, False)
        """
        from hf_attn_ext.hasse.order.flow import information_flow

        changes = {"form": _look_up, "tables": (information_flow(self),), "window": None, "family": None}
        return dataclasses.replace(self, name=f"dense_{self.name}", **changes)

    def text(self) -> str:
        """The mask as text for a terminal; see :func:`.text.mask_text`."""
        from hf_attn_ext.hasse.drawing.text import mask_text

        return mask_text(self)


def token(index: int) -> tuple:
    """The input "embedding of token ``index``"."""
    return ("token", index)


def mask_token(index: int) -> tuple:
    """The input "mask token in the place of token ``index``"."""
    return ("mask", index)


def noisy_token(index: int) -> tuple:
    """The input "token ``index`` or the mask token, by chance"."""
    return ("noisy", index)


def neighbours(index: int, tokens: int) -> tuple:
    """The input "mean of the embeddings beside token ``index``", one at the ends of the text."""
    return ("mean", index, *(i for i in (index - 1, index + 1) if 0 <= i < tokens))


def check_spec(spec: Any) -> None:
    """Raise :class:`AttnExtError` where something is no :class:`MaskSpec`."""
    if not isinstance(spec, MaskSpec):
        raise AttnExtError(
            f"give a MaskSpec, as MaskSpec.from_mask(mask) makes of a mask of your own; got {short(spec)}"
        )


def held_tokens(entry: Hashable) -> tuple[int, ...]:
    """The tokens whose embeddings an input contains.

    Example:
        >>> held_tokens(("mean", 3, 2, 4)), held_tokens(("mask", 3))
        ((2, 4), ())
    """
    if not is_input(entry):
        return ()
    return entry[2:] if entry[0] == "mean" else entry[1:] if entry[0] == "token" else ()


def is_input(entry: Hashable) -> bool:
    """Whether this is an input as the top of this file writes them."""
    if not isinstance(entry, tuple) or len(entry) < 2 or entry[0] not in ("token", "mask", "noisy", "mean"):
        return False
    return all(is_whole(part) and part >= 0 for part in entry[1:])


def _read_position_ids(ids: Any, name: str) -> Tensor:
    try:
        read = torch.as_tensor(ids)
        whole = read.ndim == 1 and not read.is_floating_point() and not read.is_complex() and read.dtype != torch.bool
    except (TypeError, ValueError, RuntimeError, OverflowError):
        whole = False
    if not whole:
        raise AttnExtError(
            f"{name}: position_ids must be whole numbers that fit int64, one a position, got {short(ids)}"
        )
    return read.to(torch.int64)


def _shapes(rows: int, columns: int) -> tuple[tuple[int, int], ...]:
    """Shapes that broadcast to a matrix."""
    return (rows, columns), (1, columns), (rows, 1), (1, 1)


def _position_name(position: int, role: str, entry: Hashable) -> str:
    index = entry[1] if is_input(entry) else position
    return f"{LETTERS.get(role, '')}{index}"


def _look_up(q: Tensor, kv: Tensor, matrix: Tensor) -> Tensor:
    return matrix[q, kv]


def _ordered(tiles: Tensor, device: torch.device | str) -> tuple[Tensor, Tensor]:
    """Numbers and indices of the tiles of each row that are set, in flex_attention's layout."""
    indices = torch.argsort(tiles.int(), dim=-1, descending=True, stable=True)
    return tiles.sum(-1).int()[None, None].to(device), indices.int()[None, None].contiguous().to(device)
