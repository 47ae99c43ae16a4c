"""The ground floor: what a mask lets flow, the order behind it. Knows torch, numpy, scipy and networkx alone."""

from .bits import BitMatrix
from .flow import convergence_depth, information_flow
from .poset import Poset

__all__ = ["BitMatrix", "Poset", "convergence_depth", "information_flow"]
