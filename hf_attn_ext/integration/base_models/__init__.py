"""Facts about Transformers' model classes (families, heads, projections, positions, causality), each in one place.

A module belongs here if it knows models but neither kernels nor masks; it imports nothing else of ``integration`` but
the names.
"""
