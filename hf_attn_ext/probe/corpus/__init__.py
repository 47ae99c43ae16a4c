"""Corpora: read texts from files, cut them, and annotate tokens with words and sentences.

Modules here work with tokenizers; a model may not come in.
"""
