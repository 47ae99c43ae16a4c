import sys
from pathlib import Path

import pytest
from transformers import RobertaForMaskedLM
from transformers.utils import logging

sys.path.insert(0, str(Path(__file__).parent))

import tiny

import hf_attn_ext.integration  # noqa: F401

logging.disable_progress_bar()


@pytest.fixture
def model():
    return tiny.tiny_model(RobertaForMaskedLM)
