"""Data sets from files: formats, splits by group, and every kind of wrong label named with its place."""

import json

import pytest

from hf_attn_ext import AttnExtError
from hf_attn_ext.training import DataConfig
from hf_attn_ext.training.data.labels import Labels, match_teacher, parse_labels
from hf_attn_ext.training.data.loading import load_task_data
from tests.training import small


@pytest.fixture
def train(tmp_path):
    return small.save_csv(tmp_path / "train.csv", small.rows(60))


def load(train, **changes):
    return load_task_data(DataConfig(train=str(train), **changes))


def table(tmp_path, labels, name="labels.csv"):
    return small.save_csv(tmp_path / name, [{"text": f"the film {i}", "label": x} for i, x in enumerate(labels)])


def test_csv_classes_by_name(train):
    data = load(train)
    assert data.labels == Labels("classification", ["bad", "good"])
    assert len(data.train) == 54 and len(data.validation) == 6 and data.test is data.validation
    assert data.reported_on == "validation"


def test_no_group_is_split(train):
    data = load(train, group_column="movie", validation_fraction=0.2, test_fraction=0.3)
    groups = [set(split.groups) for split in (data.train, data.validation, data.test)]
    assert sum(map(len, groups)) == 12 and len(set.union(*groups)) == 12
    assert [len(g) for g in groups] == [6, 2, 4]
    again = load(train, group_column="movie", validation_fraction=0.2, test_fraction=0.3)
    assert again.train.texts == data.train.texts
    other = load(train, group_column="movie", validation_fraction=0.2, test_fraction=0.3, split_seed=1)
    assert other.train.texts != data.train.texts


@pytest.mark.parametrize("suffix", ["json", "jsonl", "parquet", "tsv"])
def test_every_format_reads_the_same(tmp_path, train, suffix):
    import datasets

    rows = small.rows(60)
    path = tmp_path / f"train.{suffix}"
    if suffix == "parquet":
        datasets.Dataset.from_list(rows).to_parquet(path)
    elif suffix == "json":
        path.write_text(json.dumps(rows))
    elif suffix == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        path.write_text("text\tlabel\tmovie\n" + "".join("\t".join(row.values()) + "\n" for row in rows))
    data = load(path)
    assert data.train.texts == load(train).train.texts
    assert (data.train.labels == load(train).train.labels).all()


def test_class_names_that_a_parquet_file_declares(tmp_path):
    import datasets

    names = datasets.ClassLabel(names=["negative", "positive"])
    features = datasets.Features({"label": names, "text": datasets.Value("string")})
    rows = {"label": [1, 0] * 5, "text": [f"film {i}" for i in range(10)]}
    datasets.Dataset.from_dict(rows, features).to_parquet(tmp_path / "named.parquet")
    data = load(tmp_path / "named.parquet", validation=str(tmp_path / "named.parquet"))
    assert data.labels == Labels("classification", ["negative", "positive"])
    assert data.train.texts == rows["text"] and data.train.labels.tolist() == rows["label"]


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (["1", " 02", "+3"], [1, 2, 3]),
        (["1", "2.5", ".5", "1e3"], [1.0, 2.5, 0.5, 1000.0]),
        (["True", "false"], [True, False]),
        (["1", None], [1, None]),
        (["1_0", "2"], ["1_0", "2"]),
        (["nan", "1"], ["nan", "1"]),
        (["1", "True"], ["1", "True"]),
        (["1", "good"], ["1", "good"]),
    ],
)
def test_labels_of_a_csv_file_are_of_one_kind(written, read):
    parsed = parse_labels(written)
    assert parsed == read and list(map(type, parsed)) == list(map(type, read))


def test_plain_text_for_stage_1(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_text("the film is good\na plot\n" * 10)
    data = load_task_data(DataConfig(train=str(path)), labelled=False)
    assert data.labels is None and len(data.train) == 18


def test_folder_files_pairs_and_limits(tmp_path, train):
    rows = [{"one": f"the film {i}", "two": "a plot", "label": i % 3} for i in range(30)]
    small.save_csv(tmp_path / "pairs.csv", rows)
    data = load_task_data(
        DataConfig(
            path=str(tmp_path),
            train=["pairs.csv"],
            validation="pairs.csv",
            text_column="one",
            text_pair_column="two",
            labels=["no", "maybe", "yes"],
            max_train_examples=9,
            max_eval_examples=8,
        )
    )
    assert data.labels.names == ["no", "maybe", "yes"] and not data.labels.generic
    assert len(data.train) == 9 and len(data.validation) == 8 and data.train.pairs == ["a plot"] * 9


def test_words_that_pandas_takes_for_missing_are_text(tmp_path):
    path = small.save_csv(tmp_path / "x.csv", [{"text": t, "label": i % 2} for i, t in enumerate(["None", "NA"] * 20)])
    assert set(load(path).train.texts) == {"None", "NA"}


def test_numbers_with_a_fraction_are_regression(tmp_path):
    assert load(table(tmp_path, [0.5, 1.0, -2.25] * 10)).labels.task == "regression"
    whole = load(table(tmp_path, [1, 0] * 10, "whole.csv"), task="regression")
    assert whole.labels == Labels("regression", []) and whole.train.labels.dtype == "float32"


@pytest.mark.parametrize(
    ("labels", "changes", "said"),
    [
        (["good", "bad", ""] * 9, {}, ["label is empty", "example 3"]),
        ([0, 1, -1] * 9, {}, ["-1", "hidden"]),
        ([0, 2] * 9, {}, ["without gaps", "1 never occurs"]),
        ([1, 1] * 9, {"labels": ["only"]}, ["label 1", "not among 'only'"]),
        (["good"] * 9, {}, ["all labels are 'good'"]),
        (["good", "bad"] * 9, {"labels": ["good", "bat"]}, ["'bad'", "'bat'", "example 2"]),
        (["good", "bad"] * 9, {"labels": ["good", "good"]}, ["names a class twice"]),
        (["good", "bad"] * 9, {"task": "regression"}, ["regression needs numbers", "'good'"]),
        ([0.5, 1.0] * 9, {"task": "classification"}, ["0.5", "regression"]),
        ([0.5, 1.0] * 9, {"labels": ["a", "b"]}, ["names classes", "regression"]),
        ([0, 1] * 9, {"label_column": "lable"}, ["'lable'", "'label'"]),
        ([0, 1] * 9, {"text_column": "sentence"}, ["'sentence'", "text"]),
        ([0, 1] * 9, {"group_column": "movie"}, ["'movie'"]),
        ([0, 1] * 9, {"validation": "no.csv"}, ["no.csv", "does not exist"]),
        ([0, 1] * 9, {"validation_fraction": 0.0}, ["validation_fraction", "held-out"]),
    ],
)
def test_mistakes_name_field_value_and_place(tmp_path, labels, changes, said):
    with pytest.raises(AttnExtError) as caught:
        load(table(tmp_path, labels), **changes)
    assert "\n" not in str(caught.value)
    for part in said:
        assert part in str(caught.value)


def test_a_label_that_only_the_validation_split_has(tmp_path):
    train = table(tmp_path, ["good", "bad"] * 9)
    for labels, said in ((["goood", "bad"], "'goood'.*Did you mean 'good'"), ([1, 0], "mixed kinds")):
        other = table(tmp_path, labels * 3, f"dev{labels[0]}.csv")
        with pytest.raises(AttnExtError, match=said):
            load(train, validation=str(other))


def test_unreadable_files(tmp_path):
    for name, said in (("x.xlsx", "must end in one of"), ("train", "does not exist.*data.path")):
        if "." in name:
            (tmp_path / name).write_text("x")
        with pytest.raises(AttnExtError, match=said):
            load(tmp_path / name)
    (tmp_path / "header.csv").write_text("text,label\n")
    with pytest.raises(AttnExtError, match=r"header.csv.*holds no text"):
        load(tmp_path / "header.csv")
    broken = tmp_path / "broken.json"
    broken.write_text('[{"text": "a", "label": 1}, {')
    with pytest.raises(AttnExtError, match=r"broken.json") as caught:
        load(broken)
    assert "\n" not in str(caught.value)


def test_hub_names():
    with pytest.raises(AttnExtError, match=r"glue has no task 'sst3'.*'sst2'"):
        load_task_data(DataConfig(path="glue/sst3"))
    with pytest.raises(AttnExtError, match="no local folder and no hub id"):
        load_task_data(DataConfig(path="a/b/c/d"))


def test_glue_style_data_set(monkeypatch):
    """The hub is not reachable in tests: what it returns is stood in for by the same object, made here."""
    import datasets

    features = datasets.Features(
        {"sentence": datasets.Value("string"), "label": datasets.ClassLabel(names=["negative", "positive"])}
    )
    part = datasets.Dataset.from_dict({"sentence": ["good film", "bad film"] * 5, "label": [1, 0] * 5}, features)
    hidden = datasets.Dataset.from_dict({"sentence": ["film"], "label": [-1]}, features)
    asked = []

    def load_dataset(*arguments, **options):
        asked.append(arguments)
        return datasets.DatasetDict({"train": part, "validation": part, "test": hidden})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    data = load_task_data(DataConfig(path="glue/sst2"))
    assert asked[0] == ("nyu-mll/glue", "sst2")
    assert data.labels.names == ["negative", "positive"] and data.train.labels.tolist()[:2] == [1, 0]
    assert data.reported_on == "validation"
    with pytest.raises(AttnExtError, match=r"data.test.*-1.*hidden"):
        load_task_data(DataConfig(path="glue/sst2", test="test"))
    with pytest.raises(AttnExtError, match=r"no split 'tset'.*'test'"):
        load_task_data(DataConfig(path="glue/sst2", test="tset"))


def test_labels_meet_the_teachers():
    ours = Labels("classification", ["bad", "good"])
    assert match_teacher(ours, {0: "Good", 1: "Bad"}) == [1, 0]
    assert match_teacher(ours, {0: "LABEL_0", 1: "LABEL_1"}) == [0, 1]
    assert match_teacher(Labels("classification", ["0", "1"], generic=True), {0: "x", 1: "y"}) == [0, 1]
    assert match_teacher(Labels("regression", []), {0: "LABEL_0"}) == [0]
    with pytest.raises(AttnExtError, match=r"don't match.*2 in the data.*3 in the model"):
        match_teacher(ours, {0: "a", 1: "b", 2: "c"})
    with pytest.raises(AttnExtError, match=r"don't match.*'good' is not among 'bad', 'goot'.*Did you mean 'goot'"):
        match_teacher(ours, {0: "bad", 1: "goot"})
