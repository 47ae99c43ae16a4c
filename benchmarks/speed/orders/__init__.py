"""Time and memory of finding the order behind a mask, and of linear attention over it."""
