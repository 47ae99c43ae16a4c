"""The texts of the project use the field's words: no private word of its early days comes back.

Prose is what people read: Markdown, templates, settings and, of Python files, comments and strings (docstrings, errors,
help texts). Names of variables are not looked at.
"""

import re
import subprocess
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# What to write instead stands behind each.
PRIVATE_WORDS = {
    r"\bthe host\b|\bhost's\b|\bhosts\b": "Transformers, or the base model",
    r"\bstock\b": "the base model's, or Transformers'",
    r"\bbeside\b": "next to, alongside, together with",
    r"\bhangs? on\b": "depends on",
    r"\bnot to be had\b": "not available, cannot be computed",
    r"\bcomes? by\b": "gets",
    r"\b(is|are|was|be) told (?!apart)": "takes, is given, reads",
    r"\bwhich is none\b": "got ...",
    r"\b(that|which) (it|they) (has|have) not\b": "out of range",
    r"\b(one|two|an entry|a (score|token|line|row|column|text|number|file|mask|task)) "
    r"a (head|layer|text|token|chain|process|seed|class|step|batch|row|line|pass|contestant|mask|run)\b": "per",
    r"\ba (head|layer|token|text|file) each\b": "per",
    r"\bhidden stream\b": "hidden states, residual stream",
    r"\bwhat heads compare\b": "context similarity",
    r"\bgiven? again\b": "repeated",
    r"\bgo(es)? on\b": "continue",
    r"\bwhere (it|they) stands?\b": "position",
    r"\bno (corpus|context) changes\b": "constant memory, constant size",
    r"\bbuild_kernels\b": "build_native_op",
    r"\bwith test scores in sight\b|\bthey shall train\b|\bgoes the way back\b|\bas many operations\b": "plain English",
    r"\bthe floors of\b": "layers, packages",  # the floor of a normaliser is the field's
}
SUFFIXES = (".py", ".md", ".j2", ".yaml", ".yml", ".toml", ".cff", ".ipynb")


def prose(path: Path) -> list[tuple[int, str]]:
    """Lines of text that people read, with their numbers."""
    if path.suffix != ".py":
        return list(enumerate(path.read_text(encoding="utf-8").split("\n"), 1))
    lines = []
    strings = "tests" not in path.parts  # of tests, docstrings and comments only
    with tokenize.open(path) as file:
        for token in tokenize.generate_tokens(file.readline):
            docstring = token.type == tokenize.STRING and token.string.startswith('"""')
            string = token.type == tokenize.STRING or tokenize.tok_name[token.type] == "FSTRING_MIDDLE"
            if token.type == tokenize.COMMENT or docstring or (string and strings):
                # joined, so that a phrase over two lines is found
                lines.append((token.start[0], " ".join(token.string.split())))
    return lines


def texts() -> list[Path]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    paths = [ROOT / name for name in listed.stdout.split("\n")] if listed.returncode == 0 else list(ROOT.rglob("*"))
    kept = [path for path in paths if path.suffix in SUFFIXES and ".venv" not in path.parts and path.is_file()]
    return [path for path in kept if path != Path(__file__).resolve() and "LICENSE" not in path.name]


@pytest.mark.parametrize("word", PRIVATE_WORDS)
def test_no_private_words(word):
    pattern, found = re.compile(word, re.IGNORECASE), []
    for path, lines in PROSE.items():
        found += [f"{path}:{number}: {line.strip()[:100]}" for number, line in lines if pattern.search(line)]
    assert not found, f"write {PRIVATE_WORDS[word]!r} instead:\n" + "\n".join(found)


PROSE = {path.relative_to(ROOT): prose(path) for path in texts()}
