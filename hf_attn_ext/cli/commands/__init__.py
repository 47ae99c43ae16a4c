"""One file per command; each does no more than a script could do through the package.

May import every other package.
"""
