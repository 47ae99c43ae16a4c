import datasets
import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Tiny models only lose time to threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def data_cache(tmp_path_factory, monkeypatch):
    """``datasets`` keeps what it reads: not in the home folder of whoever runs the tests."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path_factory.getbasetemp() / "datasets"))
