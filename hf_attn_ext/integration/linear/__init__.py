"""The attention function ``"flexformer"``, its cache, and the softmax stream for calibration.

Imports ``integration.masking`` and the rooms below it.
"""
