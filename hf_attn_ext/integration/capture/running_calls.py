"""Which captured calls of models a thread is in, told by their frames: hooks do not hear of KeyboardInterrupt."""

from __future__ import annotations

import dataclasses
import itertools
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

from torch import nn

if TYPE_CHECKING:
    from .capture import ForwardPass

_THREAD = threading.local()
_HOOKS = (f"{__package__}.capture", __name__, "torch._dynamo")


@dataclasses.dataclass(eq=False)
class RunningCall:
    """A call of a model that is not over, as one capture sees it.

    Attributes:
        capture: whose.
        frame: of the call; where the thread is no longer in it, it was broken off without a word.
        handled: the exception that was being handled when the call began.
        over: passes inside it that have come to their end.
    """

    capture: Any
    module: nn.Module
    forward: ForwardPass
    frame: FrameType
    handled: BaseException | None
    over: list[ForwardPass] = dataclasses.field(default_factory=list)


def begin_call(capture: Any, module: nn.Module, forward: ForwardPass) -> None:
    """Note that a call begins; from a hook of its module."""
    frames = drop_dead()
    running_calls().append(RunningCall(capture, module, forward, frames[0], sys.exc_info()[1]))


def failed(call: RunningCall) -> bool:
    """Whether an exception ends the call; from a hook of its module."""
    return sys.exc_info()[1] is not call.handled


def running_calls() -> list[RunningCall]:
    """The calls that this thread is in, the outermost first."""
    return _THREAD.__dict__.setdefault("calls", [])


def drop_calls(which: Callable[[RunningCall], bool]) -> None:
    """Forget the calls that ``which`` holds of."""
    _THREAD.calls = [call for call in running_calls() if not which(call)]


def drop_dead() -> list[FrameType]:
    """Forget calls that were broken off; returns the thread's frames, from the caller of the hook outwards."""
    frames, frame = [], sys._getframe(1)
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    drop_calls(lambda call: call.frame not in frames)
    return [*itertools.dropwhile(lambda each: str(each.f_globals.get("__name__")).startswith(_HOOKS), frames)]
