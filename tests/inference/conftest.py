import warnings

import pytest


@pytest.fixture(autouse=True)
def quiet():
    """Two layers are too few for most masks, which is warned of and tested elsewhere."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="set_mask on")
        yield
