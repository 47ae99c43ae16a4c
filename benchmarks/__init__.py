"""Benchmarks and studies: the commands behind the numbers in the documentation. Not part of the wheel."""
