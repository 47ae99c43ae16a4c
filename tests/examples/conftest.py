"""The small assets, as fixtures."""

from tests.benchmarks.small_assets import tiny_assets, tiny_texts  # noqa: F401
