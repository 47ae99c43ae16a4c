"""Tools for the maintainers of this repository; not part of the wheel."""
