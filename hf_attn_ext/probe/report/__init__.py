"""What a reader sees of a run: findings, figures, the head browser, one HTML page.

Imports the results of :mod:`hf_attn_ext.probe`; a model may not come in here, but for the head browser.
"""
