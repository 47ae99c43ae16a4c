"""What every part of the package shares: folders that appear whole, JSON, versions, settings from several sources."""

import dataclasses
import hashlib
import os

import pytest

from hf_attn_ext._util.files import (
    TEMPORARY,
    new_folder,
    read_json,
    read_json_object,
    remove_folder,
    sha256,
    sweep,
    write_json,
)
from hf_attn_ext._util.settings import load_settings
from hf_attn_ext._util.versions import versions
from hf_attn_ext.errors import AttnExtError, first_line


def test_a_folder_appears_whole_or_stays_as_it_was(tmp_path):
    for content in ("old", "new"):
        with new_folder(tmp_path / "below" / "a") as folder:
            (folder / "file").write_text(content)
        assert (tmp_path / "below" / "a" / "file").read_text() == content
    with pytest.raises(KeyError), new_folder(tmp_path / "below" / "a") as folder:
        (folder / "file").write_text("half")
        raise KeyError
    assert (tmp_path / "below" / "a" / "file").read_text() == "new" and os.listdir(tmp_path / "below") == ["a"]
    remove_folder(tmp_path / "below" / "a")
    remove_folder(tmp_path / "below" / "a")
    assert os.listdir(tmp_path / "below") == []


def test_a_folder_comes_back_if_renaming_fails(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").write_text("old")
    rename = os.replace

    def fail(source, target):
        if os.path.basename(target) == "a" and not os.path.exists(os.path.join(source, "file")):
            raise OSError("no space")
        rename(source, target)

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="no space"), new_folder(tmp_path / "a"):
        pass
    assert (tmp_path / "a" / "file").read_text() == "old" and os.listdir(tmp_path) == ["a"]


def test_leftovers_of_a_killed_run_are_swept(tmp_path):
    (tmp_path / f"{TEMPORARY}1.tmp").mkdir()
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / f"{TEMPORARY}2.tmp").write_text("half")
    sweep(tmp_path)
    assert os.listdir(tmp_path) == ["below"] and len(os.listdir(tmp_path / "below")) == 1
    sweep(tmp_path, recursive=True)
    assert os.listdir(tmp_path / "below") == []


def test_json_is_written_whole_and_mistakes_name_the_file(tmp_path):
    write_json(tmp_path / "below" / "a.json", {"a": [1, "ü"]})
    assert read_json(tmp_path / "below" / "a.json") == {"a": [1, "ü"]}
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(tmp_path / "nan.json", float("nan"))
    (tmp_path / "file").write_text("[1")
    for read, path, said in (
        (read_json, "none", "none is missing"),
        (read_json, "file", "file is damaged: not valid JSON"),
        (read_json, "below", "below cannot be read"),
        (read_json_object, "list", "list must hold a JSON object, got list"),
    ):
        write_json(tmp_path / "list", [1])
        with pytest.raises(AttnExtError, match=said):
            read(tmp_path / path)
    with pytest.raises(AttnExtError, match=r"cannot write .*a.json"):
        write_json(tmp_path / "file" / "a.json", {})


def test_digest_versions_and_first_line(tmp_path):
    (tmp_path / "a").write_bytes(b"x" * 3_000_000)
    assert sha256(tmp_path / "a") == hashlib.sha256(b"x" * 3_000_000).hexdigest()
    assert list(versions("torch", "no-such-package")) == ["python", "torch"]
    assert first_line(ValueError("\n one \ntwo")) == "one" and first_line(KeyError()) == "KeyError"


def test_later_settings_win(tmp_path):
    @dataclasses.dataclass
    class Settings:
        a: int = 0
        b: float = 0.0
        c: str = ""

    (tmp_path / "s.yaml").write_text("a: 1\nb: 1e-3\nc: file\n")
    assert load_settings(Settings, tmp_path / "s.yaml", ["c=set"], {"a": 3}) == Settings(3, 1e-3, "set")
    assert load_settings(Settings) == Settings()
    with pytest.raises(AttnExtError, match=r"^here: unknown field 'd'"):
        load_settings(Settings, overrides=["d=1"], where="here")
