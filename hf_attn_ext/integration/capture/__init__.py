"""Capture every head's output, and its attention map, during ordinary forward passes.

Imports ``integration.linear`` and the rooms below it; a statistic may not come in here.
"""
