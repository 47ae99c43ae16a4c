"""Corpora: read texts from files, cut them, and annotate tokens with words and sentences.

Knows tokenizers; a model may not come in here.
"""
