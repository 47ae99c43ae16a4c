"""Folders of softmax models shared by the command-line tests, and a way to run a command and see what it did."""

from __future__ import annotations

import dataclasses

import pytest

from hf_attn_ext.cli.main import main
from tests.cli import models


@dataclasses.dataclass
class Outcome:
    code: int
    out: str
    err: str

    def mistake(self) -> str:
        """The one line of a user's mistake."""
        assert self.code == 2, (self.code, self.out, self.err)
        lines = self.err.splitlines()
        assert len(lines) == 1 and lines[0].startswith("error: "), self.err
        assert "Traceback" not in self.err
        return lines[0].removeprefix("error: ")


@pytest.fixture
def run(capfd):
    """Run a command in this process; stdout and stderr as a terminal would get them."""

    def run(*words: object) -> Outcome:
        capfd.readouterr()
        code = main([str(word) for word in words])
        captured = capfd.readouterr()
        return Outcome(code, captured.out, captured.err)

    return run


@pytest.fixture(scope="session")
def masked_lm(tmp_path_factory):
    return models.masked_lm(tmp_path_factory.mktemp("stock") / "masked-lm")


@pytest.fixture(scope="session")
def classifier(tmp_path_factory):
    return models.classifier(tmp_path_factory.mktemp("stock") / "classifier")


@pytest.fixture
def converted(masked_lm, tmp_path, run):
    """A freshly converted masked language model's folder."""
    folder = tmp_path / "converted"
    done = run("convert", masked_lm, "--num-features", 4, "--out", folder)
    assert done.code == 0, done.err
    return folder
