"""Checks of the probe's options."""

from __future__ import annotations

import fnmatch
import math
import numbers
from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor, nn

from hf_attn_ext.errors import AttnExtError, short, suggest
from hf_attn_ext.integration.base_models.projections import projection_layers
from hf_attn_ext.integration.base_models.readable_layers import Layer, capturable_layers

KEEPS = ("statistics", "matrices")
CONTROLS = ("cosine", "attention")
_SPECIAL = ("bos", "eos", "cls", "sep", "pad", "mask")


def readable_layers(model: nn.Module, projections: Sequence[str] | str | None, num_heads: int | None) -> list[Layer]:
    """Return the layers whose heads can be read, by the attention interface or at the output projections."""
    if projections is not None:
        return projection_layers(model, projections, num_heads)
    if num_heads is not None:
        raise AttnExtError(f"num_heads ({short(num_heads)}) is of projections, and there are none; leave it out")
    return capturable_layers(model)


def choose_layers(readable: list[Layer], chosen: Sequence[int | str] | int | str | None) -> list[Layer]:
    """Return the layers that ``chosen`` names by number or by pattern, in order; None takes all."""
    if chosen is None:
        return readable
    wanted = _listed(chosen, (numbers.Integral, str), "layers", "numbers or patterns of names")
    selected: dict[int, Layer] = {}
    for one in wanted:
        if isinstance(one, str):
            matches = [layer for layer in readable if fnmatch.fnmatchcase(layer.name, one)]
        else:
            matches = [layer for layer in readable if _is_whole(one) and layer.index == one]
        if not matches:
            names = [layer.name for layer in readable]
            raise AttnExtError(
                f"no layer matches {short(one)}; there are layers {_range(readable)}, {names[0]} to {names[-1]}."
                f"{suggest(one, names) if isinstance(one, str) else ''}"
            )
        selected |= {layer.index: layer for layer in matches}
    if not selected:
        raise AttnExtError(f"layers is empty; omit it to use all of {_range(readable)}")
    return [selected[index] for index in sorted(selected)]


def _range(layers: list[Layer]) -> str:
    return f"{layers[0].index} to {layers[-1].index}"


def choose_heads(layers: list[Layer], chosen: Sequence[int] | int | None) -> list[int]:
    """Return the numbers of the chosen heads, in order; None takes all."""
    count = min(layer.num_heads for layer in layers)
    if chosen is None:
        if any(layer.num_heads != count for layer in layers):
            numbers_of_heads = ", ".join(str(layer.num_heads) for layer in layers)
            raise AttnExtError(
                f"the layers differ in their number of heads ({numbers_of_heads}); choose layers or heads"
            )
        return list(range(count))
    wanted = _listed(chosen, numbers.Integral, "heads", "numbers")
    for one in wanted:
        if not _is_whole(one) or not 0 <= one < count:
            raise AttnExtError(f"no head {short(one)}; there are heads 0 to {count - 1}")
    if not wanted:
        raise AttnExtError(f"heads is empty; leave it out for all of 0 to {count - 1}")
    return sorted({int(one) for one in wanted})


def special_ids(tokenizer: Any) -> set[int]:
    """Return the ids of special tokens; the unknown token is not one, it stands for a word."""
    ids = (getattr(tokenizer, f"{name}_token_id", None) for name in _SPECIAL)
    return {token_id for token_id in ids if token_id is not None}


def token_ids(tokenizer: Any, tokens: Sequence[str]) -> set[int]:
    """Return the ids of tokens, with or without the vocabulary's mark of a word's beginning."""
    known = tokenizer.get_vocab()
    return {known[mark + token] for token in tokens for mark in ("", "\u0120", "\u2581") if mark + token in known}


def check_tokenizer(tokenizer: Any) -> None:
    """Check that ``tokenizer`` is a tokenizer or None."""
    if tokenizer is not None and not callable(getattr(tokenizer, "get_vocab", None)):
        raise AttnExtError(
            f"tokenizer must be a PreTrainedTokenizerFast, got {short(tokenizer)}; open it with "
            "AutoTokenizer.from_pretrained"
        )


def require_tokenizer(tokenizer: Any, function: str) -> None:
    """Check that ``tokenizer`` is a tokenizer and not None; ``function`` is the name of the caller, for the message."""
    if tokenizer is None:
        raise AttnExtError(f"{function} needs the model's tokenizer; pass tokenizer")
    check_tokenizer(tokenizer)


def vocabulary_size(reader: nn.Module) -> int | None:
    """Return the number of token ids that a model has embeddings for, or None if it does not say."""
    embeddings = getattr(reader, "get_input_embeddings", lambda: None)()
    return getattr(embeddings, "num_embeddings", None)


def check_ids(ids: Tensor, reader: nn.Module) -> None:
    """Raise AttnExtError unless all token ids are in the vocabulary of ``reader``."""
    known = vocabulary_size(reader)
    if known is not None and int(ids.max()) >= known:
        raise AttnExtError(
            f"the tokenizer gives token id {int(ids.max())}, the model knows 0 to {known - 1}; give the model's "
            "own tokenizer"
        )


def one_of(value: Any, options: Sequence[str], name: str) -> None:
    """Check that an argument is one of several strings."""
    if value not in options:
        raise AttnExtError(f"{name} must be one of {', '.join(options)}, got {short(value)}.{suggest(value, options)}")


def words(given: Sequence[str] | str, options: Sequence[str], name: str) -> tuple[str, ...]:
    """Return the words of the option ``name``, each of which must be one of ``options``."""
    given = tuple(_listed(given, str, name, "strings"))
    for one in given:
        if one not in options:
            raise AttnExtError(f"{name} has {short(one)};{suggest(one, options)} It takes {', '.join(options)}")
    return given


def tokens_of(given: Sequence[str] | str) -> tuple[str, ...]:
    """Return the option ``separators`` as a tuple of strings."""
    given = tuple(_listed(given, str, "separators", "tokens"))
    for one in given:
        if not isinstance(one, str):
            raise AttnExtError(f"separators has {short(one)}; it takes tokens, as strings")
    return given


def percents_of(given: Sequence[float]) -> tuple[float, ...]:
    """Return the option ``percents``, ascending and without repetitions."""
    listed = _listed(given, (), "percents", "numbers above 0 and up to 50")
    if not listed or not all(_is_number(one) and 0 < one <= 50 for one in listed):
        raise AttnExtError(f"percents must be numbers above 0 and up to 50, got {short(given)}")
    return tuple(sorted({int(one) if _is_whole(one) else float(one) for one in listed}))


def share(given: float) -> float:
    """Return the option ``sample``, a share from 0 to 1."""
    if not _is_number(given) or not 0 <= given <= 1:
        raise AttnExtError(f"sample must be a share of the texts from 0 to 1, got {short(given)}")
    return float(given)


def finite(given: Any, name: str) -> None:
    """Check that an argument is a finite number."""
    if not _is_number(given) or not math.isfinite(given):
        raise AttnExtError(f"{name} must be a finite number, got {short(given)}")


def whole(given: int, least: int, name: str, most: int = 2**64 - 1) -> int:
    """Return the option ``name``, a whole number from ``least`` to ``most``."""
    if not _is_whole(given) or not least <= given <= most:
        limit = f"at most {most}" if _is_whole(given) and given > most else f"at least {least}"
        raise AttnExtError(f"{name} must be a whole number of {limit}, got {short(given)}")
    return int(given)


def _is_whole(given: Any) -> bool:
    return isinstance(given, numbers.Integral) and not isinstance(given, bool)


def _is_number(given: Any) -> bool:
    return isinstance(given, numbers.Real) and not isinstance(given, bool)


def _listed(given: Any, single: type | tuple[type, ...], name: str, what: str) -> list[Any]:
    """A list of the values of an option, which may be a single value of the types ``single``."""
    if isinstance(given, single):
        return [given]
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise AttnExtError(f"{name} must be a list of {what}, got {short(given)}")
    return list(given)
