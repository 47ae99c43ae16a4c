"""A smallest chain decomposition and a largest antichain: Dilworth's theorem by bipartite matching on bit rows."""

from __future__ import annotations

from .bits import bits_of


def chains_and_antichain(down: list[int]) -> tuple[list[list[int]], list[int]]:
    """Return a chain decomposition with the fewest chains, and an antichain of as many classes.

    Every class may be followed by one class above it: a largest matching of followers to followed classes leaves the
    fewest chains. A greedy matching takes the highest free class below; augmenting paths then make it a largest one.

    Bit a of ``down[b]`` says a <= b; classes are numbered along a linear extension.

    Source: ours; Dilworth's theorem, Fulkerson's reduction to matching, Koenig's theorem for the antichain.
    """
    count = len(down)
    below = [row ^ (1 << number) for number, row in enumerate(down)]
    before: list[int] = [-1] * count  # the class that a class follows
    after: list[int] = [-1] * count  # the class that follows it
    free = (1 << count) - 1  # classes without a follower
    for upper, row in enumerate(below):
        candidates = row & free
        if candidates:
            lower = candidates.bit_length() - 1
            before[upper], after[lower] = lower, upper
            free ^= 1 << lower
    reached, free = _augment(below, before, after, free)
    return _follow(before, after), _antichain(below, before, reached)


def _augment(below: list[int], before: list[int], after: list[int], free: int) -> tuple[int, int]:
    """Make the matching a largest one; return the classes that the last search reached from below, and the free ones.

    A round searches from every class that follows none and visits each class once. A round without success proves that
    there is no augmenting path.
    """
    count = len(below)
    while True:
        unseen, improved = (1 << count) - 1, False
        for root in range(count):
            if before[root] >= 0 or not below[root]:
                continue
            path = [(root, -1)]  # an upper class, and the lower one through which it was reached
            while path:
                row = below[path[-1][0]] & unseen
                hit = row & free
                if hit:
                    lower = hit.bit_length() - 1
                    free ^= 1 << lower
                    unseen ^= 1 << lower
                    while path:
                        upper, through = path.pop()
                        before[upper], after[lower] = lower, upper
                        lower = through
                    improved = True
                elif row:
                    lower = row.bit_length() - 1
                    unseen ^= 1 << lower
                    path.append((after[lower], lower))
                else:
                    path.pop()
        if not improved:
            return ((1 << count) - 1) ^ unseen, free


def _follow(before: list[int], after: list[int]) -> list[list[int]]:
    chains = []
    for start, previous in enumerate(before):
        if previous < 0:
            chain = [start]
            while after[chain[-1]] >= 0:
                chain.append(after[chain[-1]])
            chains.append(chain)
    return chains


def _antichain(below: list[int], before: list[int], reached: int) -> list[int]:
    """Classes that a smallest vertex cover holds on neither side: searched from above, not reached from below."""
    searched = [previous < 0 for previous in before]
    for upper, lower in enumerate(before):
        if lower >= 0 and reached >> lower & 1:
            searched[upper] = True
    outside = ((1 << len(below)) - 1) ^ reached
    return [number for number in bits_of(outside).tolist() if searched[number]]
