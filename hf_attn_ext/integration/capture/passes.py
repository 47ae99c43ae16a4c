"""Forward passes of captured models, and the calls of models that the current context is in."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn


@dataclasses.dataclass
class ForwardPass:
    """One forward pass of a captured model, from the call of the model that reads the tokens.

    Attributes:
        input_ids: (B, N), or None if the caller passed embeddings.
        attention_mask: bool (B, N), True = real token; all True if the caller passed none. For a mask with more axes,
            padding is what no query may attend to, see :func:`..base_models.call_arguments.padding_mask`.
        notes: storage for listeners; it lives as long as the pass.
    """

    input_ids: Tensor | None
    attention_mask: Tensor | None
    notes: dict[Any, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(eq=False)
class RunningCall:
    """One call of a model, as one capture sees it.

    Attributes:
        capture: the capture.
        module: the model that is called.
        forward: the pass that begins with this call.
        finished: passes inside this call that have ended.
    """

    capture: Any
    module: nn.Module
    forward: ForwardPass
    finished: list[ForwardPass] = dataclasses.field(default_factory=list)


_RUNNING: contextvars.ContextVar[tuple[RunningCall, ...]] = contextvars.ContextVar("running_calls", default=())
_RETURNED: contextvars.ContextVar[tuple[RunningCall, ...]] = contextvars.ContextVar("returned_calls", default=())


def running_calls() -> tuple[RunningCall, ...]:
    """Return the captured calls that the current context (thread, task) is in, the outermost first."""
    return _RUNNING.get()


@contextlib.contextmanager
def running(calls: tuple[RunningCall, ...]) -> Iterator[None]:
    """Enter ``calls``; leave them however the block ends. :func:`returned_call` finds them if it ends well."""
    token = _RUNNING.set((*_RUNNING.get(), *calls))
    try:
        yield
    finally:
        _RUNNING.reset(token)
    _RETURNED.set(calls)


def returned_call(capture: Any, module: nn.Module) -> RunningCall | None:
    """Return the call of ``module`` that has just finished, or None. For use in a forward hook of ``module``."""
    return next((call for call in _RETURNED.get() if call.capture is capture and call.module is module), None)
