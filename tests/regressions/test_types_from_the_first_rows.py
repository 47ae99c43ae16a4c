"""The first 10,000 rows of a file decided the type of a column, and a later row of another type stopped the reading."""

import json

from hf_attn_ext.training import DataConfig
from hf_attn_ext.training.data.loading import load_task_data

ROWS = 10_001


def load(path, **changes):
    return load_task_data(DataConfig(train=str(path), validation=str(path), **changes))


def test_a_late_note_in_a_column_that_is_not_read(tmp_path):
    path = tmp_path / "notes.csv"
    path.write_text("text,label,note\n" + "".join(f"t{i},{i % 5},\n" for i in range(ROWS)) + "last,1,hello\n")
    data = load(path)
    assert len(data.train) == ROWS + 1 and data.labels.names == list("01234")


def test_a_late_fraction_among_ratings(tmp_path):
    path = tmp_path / "ratings.csv"
    path.write_text("text,label\n" + "".join(f"t{i},{i % 5}\n" for i in range(ROWS)) + "last,2.5\n")
    for task in ("auto", "regression"):
        data = load(path, task=task)
        assert data.labels.task == "regression" and data.train.labels[-2:].tolist() == [0.0, 2.5]


def test_json_with_whole_numbers_and_fractions(tmp_path):
    path = tmp_path / "ratings.jsonl"
    path.write_text("".join(json.dumps({"text": f"t{label}", "label": label}) + "\n" for label in (1, 2, 2.5)))
    assert load(path).train.labels.tolist() == [1.0, 2.0, 2.5]


def test_texts_that_look_like_numbers_or_dates(tmp_path):
    for name, content in (
        ("a.csv", "text,label\n007,a\n2020-01-01,b\n"),
        ("a.jsonl", '{"text": "007", "label": "a"}\n{"text": "2020-01-01", "label": "b"}\n'),
    ):
        (tmp_path / name).write_text(content)
        assert load(tmp_path / name).train.texts == ["007", "2020-01-01"]
