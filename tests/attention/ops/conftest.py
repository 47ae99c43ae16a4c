"""Running a command, for the page's tests."""

from tests.cli.conftest import run

__all__ = ["run"]
