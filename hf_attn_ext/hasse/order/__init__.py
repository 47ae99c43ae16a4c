"""The order theory: bit matrices, closure, posets, chains, flow and isomorphism.

Imports torch, numpy and networkx only; mask specifications and tasks do not belong here.
"""
