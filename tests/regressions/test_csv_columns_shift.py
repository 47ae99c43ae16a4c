"""A csv row longer than its header, a header with a name twice and an open quote gave shifted or merged texts."""

import pytest

from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.probe.corpus.corpus import read_corpus
from hf_attn_ext.training import DataConfig
from hf_attn_ext.training.data.loading import load_task_data


def read_for_training(path):
    return load_task_data(DataConfig(train=str(path), validation=str(path)))


def read_for_the_probe(path):
    return read_corpus([str(path)])


@pytest.mark.parametrize("read", [read_for_training, read_for_the_probe])
@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("text,label\nfine,1\nI went home, tired,0\n", "line 3: 3 fields, but the header has 2"),
        ("text,label\n\nfine,1\nalone\n", "line 4: 1 fields, but the header has 2"),
        ("text,text,label\nfirst,second,1\nthird,fourth,0\n", "has two columns 'text'"),
        ("text,note,note,label\nfirst,,,1\nthird,,,0\n", "has two columns 'note'"),
        ('text,label\nfine,1\n"One house met,1\nTwo met,0\n', "line 3: a quote is never closed"),
        ('text,label\n"two\nlines",1\n"good" film,0\n', "line 4: ',' expected after"),
    ],
)
def test_the_file_and_line_are_named(tmp_path, read, content, said):
    (tmp_path / "bad.csv").write_text(content)
    with pytest.raises(AttnExtError) as caught:
        read(tmp_path / "bad.csv")
    assert said in str(caught.value) and "bad.csv" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("read", [read_for_training, read_for_the_probe])
def test_quoted_separators_quotes_and_line_ends_are_text(tmp_path, read):
    (tmp_path / "good.tsv").write_text('label\ttext\n1\t"tab\there"\n0\t"a ""word"""\n0\tsix" wide\n1\t"two\nlines"\n')
    data = read(tmp_path / "good.tsv")
    texts = data.train.texts if read is read_for_training else data.texts
    assert texts == ["tab\there", 'a "word"', 'six" wide', "two\nlines"]
