"""Read and write masks and task families as files.

May import everything in ``hasse`` except drawing.
"""
