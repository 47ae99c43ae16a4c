import sys
from pathlib import Path

import pytest
import torch
from transformers.utils import logging

for folder in (Path(__file__).parent, Path(__file__).parents[1] / "integration"):
    sys.path.insert(0, str(folder))

import planted  # noqa: E402

logging.disable_progress_bar()


@pytest.fixture
def tokenizer():
    return planted.word_tokenizer()


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)
