"""The presentation of a probe's results: findings, figures, the head browser, one HTML page.

Imports the results of :mod:`hf_attn_ext.probe`, below the probe itself; only the head browser runs a model.
"""
