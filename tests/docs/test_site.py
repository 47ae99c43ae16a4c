"""The site's pages: the one of the command line is current, and the navigation names every page."""

import re
from pathlib import Path

from typer.cli import app
from typer.testing import CliRunner

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


def test_the_page_of_the_command_line_is_current():
    """Otherwise: make docs-cli."""
    words = re.search(r"\$\(BIN\)/python -m typer (.*) --output (\S+)", (ROOT / "Makefile").read_text(encoding="utf-8"))
    arguments = [word.strip('"') for word in re.findall(r'"[^"]*"|\S+', words[1])]
    made = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert made.output.strip() == (ROOT / words[2]).read_text(encoding="utf-8").strip()


def test_the_navigation_names_every_page():
    named = set(re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE))
    assert named == {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
