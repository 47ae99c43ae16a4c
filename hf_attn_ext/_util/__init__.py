"""Helpers that know nothing of attention: files, settings, processes, progress.

May be imported by every other package; imports only :mod:`hf_attn_ext.errors` and third-party libraries.
"""
