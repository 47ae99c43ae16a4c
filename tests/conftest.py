"""Settings for every test: no network by accident, one thread (runs compare bit for bit), no windows, torch's own
forms whether or not the native op is built here (``HF_ATTN_EXT_COMPILED=1`` before pytest takes it).
"""

import os
import sys

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("HF_ATTN_EXT_COMPILED", "0")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


@pytest.fixture(autouse=True)
def _fresh_accelerator_state():
    """A process has one precision for good; here every test is a run of its own."""
    yield
    state = sys.modules.get("accelerate.state")
    if state is not None:
        state.AcceleratorState._reset_state()
