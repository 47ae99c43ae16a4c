"""Check of a mask before training.

It reports five things: a target that its own prediction can see, a row that attends to nothing, rows that see later
ones, a depth beyond the model's layers, and the number of labels per token.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from hf_attn_ext.errors import AttnExtError, short
from hf_attn_ext.hasse.order.flow import convergence_depth, information_flow
from hf_attn_ext.hasse.order.reading import is_whole

from .inputs import held_tokens, is_input

if TYPE_CHECKING:
    from .spec import MaskSpec

_LISTED = 10  # listed findings of one kind; the last one counts the rest


@dataclasses.dataclass(frozen=True)
class Finding:
    """One result of a check.

    Attributes:
        kind: ``"target_leak"``, ``"empty_row"``, ``"cache"``, ``"depth"`` or ``"supervision"``.
        severity: ``"error"`` (do not train with this), ``"warning"``, or ``"note"`` (a fact to know).
        message: one line.
        position: the position concerned, or None.
        path: for a leak, the positions from the prediction to one that holds its target; each attends to the next.
        value: for ``"depth"`` the layers needed, for ``"supervision"`` labels per token, for ``"cache"`` whether no
            row sees a later one.
    """

    kind: str
    severity: str
    message: str
    position: int | None = None
    path: tuple[int, ...] = ()
    value: float | None = None

    def __str__(self) -> str:
        return f"{self.severity}: {self.message}"


def check(spec: MaskSpec, num_layers: int | None = None, raises: bool = False) -> list[Finding]:
    """Check a mask with its labels.

    - **Target leak**, an error: a label's token is held by a position whose information reaches the prediction, at
      any depth. It is a warning if ``num_layers`` layers are too few for that, or if the input that reaches a
      prediction does not have the form of :mod:`.inputs`, so that the tokens it holds are unknown.
    - **Empty row**, an error: the softmax over a position that attends to nothing, not even itself, is 0 / 0.
    - **Cache**, a note: whether some row sees a later one. Keys and values that were cached at the earlier row are
      then wrong unless both rows were computed together.
    - **Depth**, a note, or a warning if ``num_layers`` is smaller: layers after which no further information arrives.
    - **Supervision**, a note: labels per token.

    Args:
        spec: a mask with labels.
        num_layers: layers of the model, or None.
        raises: raise the first error instead of returning it.

    Returns:
        Findings, errors first.

    Raises:
        AttnExtError: ``num_layers`` below 1; with ``raises``, the first error.

    Example:
        >>> from hf_attn_ext.hasse import MaskSpec
        >>> leaking = MaskSpec.from_mask([[1, 1], [1, 1]], labels={0: 1})
        >>> print(check(leaking)[0])
        error: target leak: position 0 (w0) must predict token 1, which reaches it in 1 layer: w0 <- w1
    """
    if num_layers is not None and (not is_whole(num_layers) or num_layers < 1):
        raise AttnExtError(f"num_layers must be a whole number of at least 1, or None, got {short(num_layers)}")
    findings = [*_leaks(spec, num_layers), *_empty_rows(spec), *_depth(spec, num_layers)]
    findings += [_cache(spec), _supervision(spec)]
    order = {"error": 0, "warning": 1, "note": 2}
    findings.sort(key=lambda finding: order[finding.severity])
    if raises:
        refuse(spec, findings)
    return findings


def refuse(spec: MaskSpec, findings: Sequence[Finding]) -> None:
    """Raise the first error among the findings of :func:`check`, if there is one.

    Raises:
        AttnExtError: the first error.
    """
    errors = [finding for finding in findings if finding.severity == "error"]
    if errors:
        more = " (and more errors)" if len(errors) > 1 else ""
        raise AttnExtError(f"{spec.title} fails its check: {errors[0].message}{more}")


def steps(spec: MaskSpec) -> list[int]:
    """Return the lengths of the smallest parts that can be computed one after the other with a cache.

    Returns:
        Only ones if no row sees a later one; ``[N]`` if the sequence must be computed at once.

    Example:
        >>> from hf_attn_ext.hasse import masks
        >>> steps(masks.prefix_lm(4, 2))
        [2, 1, 1]
    """
    lengths, start = [], 0
    for position, last in enumerate(_last_seen(spec).cummax(0).values.tolist()):
        if last <= position:
            lengths.append(position + 1 - start)
            start = position + 1
    return lengths


def _leaks(spec: MaskSpec, num_layers: int | None) -> list[Finding]:
    holders: dict[int, list[int]] = {}
    for position, entry in enumerate(spec.inputs):
        for token in held_tokens(entry):
            holders.setdefault(token, []).append(position)
    unknown = [p for p, entry in enumerate(spec.inputs) if not is_input(entry)]
    if not spec.labels or not (unknown or any(token in holders for token in spec.labels.values())):
        return []
    flow = information_flow(spec)
    leaking = [p for p, token in sorted(spec.labels.items()) if token in holders and flow[p, holders[token]].any()]
    mask = spec.dense() if leaking else flow
    findings = []
    for position in leaking[:_LISTED]:
        token = spec.labels[position]
        path = _shortest_path(mask, position, holders[token])
        layers = len(path) - 1
        late = num_layers is not None and layers > num_layers
        arrows = " <- ".join(spec.names[p] for p in path)
        how = f"reaches it in {_layers(layers)}: {arrows}" if layers else "is its own input"
        message = f"target leak: position {position} ({spec.names[position]}) must predict token {token}, which {how}"
        message += f"; {_layers(num_layers)} are too few for that, one more may not be" if late else ""
        findings.append(Finding("target_leak", "warning" if late else "error", message, position, tuple(path)))
    return [*_and_more(findings, len(leaking)), *_unknown(spec, flow, unknown)]


def _unknown(spec: MaskSpec, flow: torch.Tensor, unknown: list[int]) -> list[Finding]:
    """A warning if a prediction is reached by inputs whose tokens are unknown."""
    unsure = [p for p in sorted(spec.labels) if flow[p, unknown].any()]
    if not unsure:
        return []
    first = next(p for p in unknown if flow[unsure[0], p])
    message = (
        f"target leak: cannot be ruled out, {len(unsure)} of {len(spec.labels)} predictions are reached by inputs that "
        f"do not say which tokens they hold, such as {short(spec.inputs[first])} at {first}, which reaches "
        f"{spec.names[unsure[0]]} at {unsure[0]}; write ('token', number)"
    )
    return [Finding("target_leak", "warning", message, unsure[0])]


def _shortest_path(mask: torch.Tensor, start: int, goals: list[int]) -> list[int]:
    """Positions from ``start`` to the nearest goal, each attending to the next; such a path must exist."""
    from scipy.sparse.csgraph import breadth_first_order

    reached, previous = breadth_first_order(mask.numpy(), start)
    paths = [[goal] for goal in goals if goal in reached]
    for path in paths:
        while path[0] != start:
            path.insert(0, int(previous[path[0]]))
    return min(paths, key=len)


def _empty_rows(spec: MaskSpec) -> list[Finding]:
    empty = torch.cat([~rows.any(-1) for rows in spec.chunks()]).nonzero().flatten().tolist()
    findings = [
        Finding(
            "empty_row", "error", f"empty row: position {p} ({spec.names[p]}) attends to nothing, not even itself", p
        )
        for p in empty[:_LISTED]
    ]
    return _and_more(findings, len(empty))


def _depth(spec: MaskSpec, num_layers: int | None) -> list[Finding]:
    depth = convergence_depth(spec)
    message = f"depth: after {_layers(depth)} no further information arrives"
    if num_layers is not None and num_layers < depth:
        return [Finding("depth", "warning", f"{message}, but the model has {_layers(num_layers)}", value=depth)]
    return [Finding("depth", "note", message, value=depth)]


def _cache(spec: MaskSpec) -> Finding:
    last = _last_seen(spec)
    early = (last > torch.arange(len(spec))).nonzero().flatten().tolist()
    if not early:
        return Finding("cache", "note", "cache: safe, no row sees a later one", value=True)
    first, later = early[0], int(last[early[0]])
    lengths = steps(spec)
    together = f"in parts of {_runs(lengths)}" if len(lengths) > 1 else "all at once"
    message = (
        f"cache: not safe position by position, {first} ({spec.names[first]}) sees the later {later} "
        f"({spec.names[later]}); compute the sequence {together}"
    )
    return Finding("cache", "note", message, first, value=False)


def _supervision(spec: MaskSpec) -> Finding:
    labels, covered = len(spec.labels), len(set(spec.labels.values()))
    density = labels / spec.tokens
    counts = f"{labels} for {spec.tokens} tokens, {covered} of them targets"
    message = f"supervision: {density:.2f} labels per token ({counts})"
    return Finding("supervision", "note", message, value=density)


def _last_seen(spec: MaskSpec) -> torch.Tensor:
    """The last position that each row sees, int64 (N,); -1 where it sees none."""
    numbers = torch.arange(1, len(spec) + 1, dtype=torch.int32)
    return torch.cat([(rows * numbers).amax(-1) for rows in spec.chunks()]).long() - 1


def _and_more(findings: list[Finding], count: int) -> list[Finding]:
    if count > len(findings):
        last = findings[-1]
        findings[-1] = dataclasses.replace(last, message=f"{last.message} (and {count - len(findings)} more positions)")
    return findings


def _layers(count: int | None) -> str:
    return f"{count} layer" + ("" if count == 1 else "s")


def _runs(lengths: list[int]) -> str:
    """``[4, 4, 1, 1]`` as ``"4 (2 times), 1 (2 times)"``, at most four runs."""
    runs = [(length, len(list(some))) for length, some in itertools.groupby(lengths)]
    words = [f"{length}" if times == 1 else f"{length} ({times} times)" for length, times in runs[:4]]
    return ", ".join(words) + (", ..." if len(runs) > 4 else "")
