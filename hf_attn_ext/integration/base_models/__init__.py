"""Facts about Transformers' model classes: families, head layouts, projections, positions, causality.

Each fact has one place here. Imports nothing else of ``integration``.
"""
