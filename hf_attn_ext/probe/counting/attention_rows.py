"""Rows of attention maps that can be normalised again over some of their keys."""

from __future__ import annotations

# A row's weights can be normalised again where their sum is above this share of the sum of their absolute values: those
# of a signed kernel may cancel, and nearly nothing in the denominator is any share whatever.
LEAST_SUM = 0.05
