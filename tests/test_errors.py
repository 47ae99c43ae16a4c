"""What messages are made of."""

import pytest

from hf_attn_ext.errors import short, suggest


class Silent:
    def __repr__(self):
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a\nb", "'a\\nb'"),
        (Silent(), "<Silent>"),
        ("x" * 200, "'" + "x" * 76 + "..."),
        (None, "None"),
    ],
)
def test_a_value_in_few_words(value, text):
    assert short(value) == text


def test_a_number_that_python_does_not_write_out():
    assert short(10**5000) == "<int>"


def test_a_value_of_several_lines_is_one():
    class Matrix:
        def __repr__(self):
            return "[[1, 0],\n [0, 1]]"

    assert short(Matrix()) == "[[1, 0], [0, 1]]"


def test_the_nearest_name():
    assert suggest("hedgehg", ["hedgehog", "performer"]) == " Did you mean 'hedgehog'?"
    assert suggest("nothing like it", ["hedgehog"]) == "" == suggest("x" * 10**6, ["hedgehog"])
