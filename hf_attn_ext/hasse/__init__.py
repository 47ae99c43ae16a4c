"""The ground floor: what a mask lets flow, the order behind it. Knows torch, numpy, scipy and networkx alone."""

from .bits import BitMatrix
from .flow import convergence_depth, information_flow
from .poset import Poset
from .spec import MaskSpec

from . import masks  # isort: skip  (the masks are made of all of the above)

__all__ = ["BitMatrix", "MaskSpec", "Poset", "convergence_depth", "information_flow", "masks"]
