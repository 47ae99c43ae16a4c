import pytest
from transformers import RobertaForMaskedLM
from transformers.utils import logging

import hf_attn_ext.integration  # noqa: F401
from tests.integration import tiny

logging.disable_progress_bar()


@pytest.fixture
def model():
    return tiny.tiny_model(RobertaForMaskedLM)
