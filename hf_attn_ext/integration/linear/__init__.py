"""The attention function ``"flexformer"``, its recurrent cache, and the softmax stream for calibration and transfer.

A module belongs here if it computes or observes linear attention inside a model's forward pass; it imports
``integration.masking`` and the rooms below it.
"""
