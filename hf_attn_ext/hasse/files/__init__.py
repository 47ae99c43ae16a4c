"""Read and write masks and tasks as files.

May import everything in ``hasse`` except drawing.
"""
