"""What is written is there whole or not at all."""

import os
import threading

import pytest

from hf_attn_ext._util.files import atomic_write, write_text
from hf_attn_ext.errors import AttnExtError


def test_the_old_text_or_the_new(tmp_path):
    path = tmp_path / "a.txt"
    write_text(path, "old")
    with pytest.raises(KeyError), atomic_write(path) as beside:
        beside.write_text("ne")
        raise KeyError("of the caller")
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["a.txt"]
    with atomic_write(str(path)) as beside:
        beside.write_text("new")
        assert path.read_text() == "old" and beside.parent == tmp_path
    assert path.read_text() == "new" and os.listdir(tmp_path) == ["a.txt"]


def test_an_interruption_leaves_nothing(tmp_path):
    with pytest.raises(KeyboardInterrupt), atomic_write(tmp_path / "a.txt") as beside:
        beside.write_text("ha")
        raise KeyboardInterrupt
    assert not os.listdir(tmp_path)


def test_files_written_at_once_do_not_meet(tmp_path):
    with atomic_write(tmp_path / "a") as one, atomic_write(tmp_path / "b") as other:
        one.write_text("a")
        other.write_text("b")
    assert (tmp_path / "a").read_text() == "a" and (tmp_path / "b").read_text() == "b"
    texts = [letter * 100_000 for letter in "abcd"]
    writers = [threading.Thread(target=write_text, args=(tmp_path / "a", text)) for text in texts]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert (tmp_path / "a").read_text() in texts and sorted(os.listdir(tmp_path)) == ["a", "b"]


def test_modes_and_letters_are_those_of_any_new_file(tmp_path):
    write_text(tmp_path / "a", "tiếng Việt\n")
    (tmp_path / "b").write_text("")
    assert (tmp_path / "a").read_bytes().decode() == "tiếng Việt\n"
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode


def test_what_the_system_refuses_is_one_line(tmp_path):
    longest = tmp_path / ("a" * 255)
    write_text(longest, "")
    assert longest.is_file()
    (tmp_path / "folder").mkdir()
    for bad in (tmp_path / "none" / "a", longest / "a", tmp_path / "folder", tmp_path / ("a" * 300)):
        with pytest.raises(AttnExtError, match="cannot write") as caught:
            write_text(bad, "x")
        assert str(bad) in str(caught.value) and "\n" not in str(caught.value)
    assert sorted(os.listdir(tmp_path)) == ["a" * 255, "folder"]


def test_nothing_was_written(tmp_path):
    with pytest.raises(AttnExtError, match="cannot write"), atomic_write(tmp_path / "a"):
        pass
