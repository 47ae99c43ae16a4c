import sys
from pathlib import Path

import pytest
import torch
from transformers.utils import logging

sys.path.insert(0, str(Path(__file__).parent))

import planted

logging.disable_progress_bar()


@pytest.fixture
def tokenizer():
    return planted.word_tokenizer()


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)
