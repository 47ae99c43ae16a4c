"""Tokens know their sentence and word, by offsets."""

import planted
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.probe.corpus.annotate import annotate, check_boundaries, segment_starts, sentence_starts, shuffled


@pytest.mark.parametrize(
    ("text", "starts"),
    [
        ("One. Two.", [0, 5]),
        ("Dr. Smith met Mrs. Jones at 3.30 p.m. They left.", [0, 38]),
        ("A line\n\nAnother line", [0, 8]),
        ("  Indented. Next one.", [0, 12]),
        ("no end", [0]),
        ("\n\n", []),
        ("Él vino. Ñu 😀 fue. Fin.", [0, 9, 19]),
    ],
)
def test_sentences_begin_where_a_reader_says(text, starts):
    assert sentence_starts(text) == starts


def test_tokens_padding_and_special_tokens(tokenizer):
    found = annotate(["Word1 word2. Word3.", "Word4."], tokenizer)
    assert found.input_ids.shape == (2, 7) and found.attention_mask.sum(1).tolist() == [7, 4]
    assert found.sentences.tolist() == [[-1, 0, 0, 0, 1, 1, -1], [-1, 0, 0, -1, -1, -1, -1]]
    assert found.words.tolist() == [[-1, 0, 1, 2, 3, 4, -1], [-1, 0, 1, -1, -1, -1, -1]]
    assert found.special.tolist() == [[True] + [False] * 5 + [True], [True, False, False] + [True] * 4]


def test_byte_level_tokens_that_begin_with_a_space():
    core = Tokenizer(models.BPE())
    core.pre_tokenizer, core.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    core.train_from_iterator(
        ["One two. Three ü four."] * 9, trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet)
    )
    found = annotate(["One two. Three ü four."], PreTrainedTokenizerFast(tokenizer_object=core))
    text = [core.id_to_token(number) for number in found.input_ids[0].tolist()]
    border = next(position for position, token in enumerate(text) if token.startswith("ĠT"))
    assert found.sentences[0].tolist() == [0] * border + [1] * (len(text) - border)


def test_a_slow_tokenizer_is_named():
    with pytest.raises(AttnExtError, match=r"object.*fast tokenizer"):
        annotate(["One."], object())


def test_padding_uses_some_token_where_none_is_named():
    bare = planted.word_tokenizer()
    bare.pad_token = None
    assert annotate(["Word1 word2.", "Word1."], bare).attention_mask.tolist() == [[1] * 5, [1, 1, 1, 1, 0]]


def test_segments_end_after_their_boundaries():
    starts = segment_starts("CCO.CC(=O)O>>CCOC(C)=O.", [".", ">>"])
    assert starts == [0, 4, 13]
    assert segment_starts("a>b >> . c", [">", ">>", "."]) == [0, 2, 9] and segment_starts("abc", ["."]) == [0]
    for wrong in (".", [], [" "], [1]):
        with pytest.raises(AttnExtError, match="boundaries must be a list of strings"):
            check_boundaries(wrong)


def test_segments_replace_sentences(tokenizer):
    text = "Word1 word2, word3. word4, word5"
    assert annotate([text], tokenizer, boundaries=[","]).sentences.tolist() == [[-1, 0, 0, 0, 1, 1, 1, 1, 2, -1]]


def test_shuffled_tokens_move_and_sentences_stay(tokenizer):
    texts = ["Word1 word2 word3. Word4 word5 word6.", "Word7, word8."]
    known = annotate(texts, tokenizer)
    mixed = shuffled(known, 3)
    assert (mixed.sentences == known.sentences).all() and (mixed.special == known.special).all()
    ids, before = mixed.input_ids, known.input_ids
    assert (ids[0] != before[0]).any() and (ids[known.special] == before[known.special]).all()
    assert (ids.sort(1).values == before.sort(1).values).all()
    # the same text has the same order in any batch, another seed another
    alone = shuffled(annotate(texts[1:], tokenizer), 3).input_ids[0]
    assert (alone == ids[1, : len(alone)]).all()
    assert (shuffled(known, 4).input_ids[0] != ids[0]).any()
    ids_of_word = dict(zip(before[0].tolist(), known.words[0].tolist(), strict=True))
    unique = [i for i in ids[0].tolist() if before[0].tolist().count(i) == 1 and i > 4]
    assert all(mixed.words[0][ids[0].tolist().index(i)] == ids_of_word[i] for i in unique)
