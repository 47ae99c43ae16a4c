"""lm-evaluation-harness, made fit for tests that run it in their own process."""

from __future__ import annotations

import functools

import pytest


def prepare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the harness know only the tasks that are included: it reads thousands of files at every start."""
    import lm_eval.utils
    from lm_eval.tasks import TaskManager

    own = functools.partialmethod(TaskManager.__init__, include_defaults=False)
    monkeypatch.setattr(TaskManager, "__init__", own)
    # its log would be bound to the stderr of the first test for good
    monkeypatch.setattr(lm_eval.utils, "_LOGGING_CONFIGURED", True)
