"""The order theory: bit matrices, closure, posets, chains, flow and isomorphism.

Imports torch, numpy and networkx only; a mask specification or a task may not come in here.
"""
