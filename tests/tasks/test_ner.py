"""Tags are checked against their scheme, no word is lost or asked for twice, and entities are scored as CoNLL does."""

import numpy as np
import pytest
import tensorflow as tf

from kbert.tasks import ner
from kbert.tasks.ner import Sentence
from kbert.text.wordpiece import WordPiece

LETTERS = "abcdefghijklmnopqrstuvwxyz"
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{letter}" for letter in LETTERS), *".,?"]
LABELS = ["O", "B-X", "I-X"]


@pytest.fixture(scope="module")
def tokenizer():
    return WordPiece(VOCABULARY)


def written(tmp_path, text: str):
    path = tmp_path / "file.conll"
    path.write_text(text, encoding="utf-8")
    return path


def test_sentences_end_at_blank_lines_and_documents_begin_at_docstart(tmp_path):
    path = written(
        tmp_path, "-DOCSTART- O\n\na\tO\nb c\tB-X\n\t\n\nd\tI-X\n".replace("I-X", "O") + "-DOCSTART- -X- O\ne x O\n"
    )
    sentences = ner.read(path)
    assert [one.words for one in sentences] == [["a", "b c"], ["d"], ["e"]]
    assert [one.tags for one in sentences] == [["O", "B-X"], ["O"], ["O"]]
    assert [one.document for one in sentences] == [1, 1, 2] and sentences[1].where.endswith("line 7")


def test_columns_may_be_any_and_so_may_what_parts_them(tmp_path):
    path = written(tmp_path, "O|x|a|1\nB-X|x|b|2\n")
    (sentence,) = ner.read(path, columns=ner.Columns("|", 2, 0))
    assert sentence.words == ["a", "b"] and sentence.tags == ["O", "B-X"]
    path = written(tmp_path, " 10\u202f000  O \nNew\u3000York B-X\n")
    (sentence,) = ner.read(path)
    assert sentence.words == ["10\u202f000", "New\u3000York"] and sentence.tags == ["O", "B-X"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a O\nb\n", r"line 2: 'b' has 1 columns; expected at least 2"),
        ("a O\nb I-X\n", r"line 2: I-X between O and its end is no IOB2; expected scheme IOB1"),
        ("a O\nb S-X\nc O\n", r"line 2: S-X between O and O is no IOB2; expected scheme IOBES"),
        ("a O\nb X\n", r"line 2: X between O and its end is no IOB2; expected O, or B-, I- and so on"),
        ("\n\n", "holds no words"),
    ],
)
def test_bad_columns_and_tags_are_refused_with_file_and_line(tmp_path, text, message):
    with pytest.raises(ValueError, match=f"file.conll.*{message}"):
        ner.read(written(tmp_path, text))


@pytest.mark.parametrize(
    ("tags", "fits"),
    [
        ("O B-X I-X O B-X B-X", {"IOB2"}),
        ("O I-X I-X B-X I-X O I-Y", {"IOB1"}),
        ("B-X I-Y", set()),
        ("B-X B-X", {"IOB2"}),
        ("I-X B-Y", set()),
        ("S-X B-X I-X E-X O S-Y", {"IOBES"}),
        ("B-X E-Y", set()),
        ("B-X O", {"IOB2"}),
        ("O O", {"IOB2", "IOB1", "IOBES"}),
        ("I-", set()),
    ],
)
def test_a_scheme_allows_what_it_says(tags, fits):
    assert {scheme for scheme in ner.SCHEMES if ner.first_fault(tags.split(), scheme) is None} == fits


def sentences_of(*lengths: int) -> list[Sentence]:
    random = np.random.default_rng(len(lengths))
    made = []
    for number, length in enumerate(lengths):
        words = ["".join(random.choice(list(LETTERS), random.integers(1, 6))) for _ in range(length)]
        tags = [LABELS[place % 2] for place in range(length)]
        made.append(Sentence(words, tags, number // 3, f"f, line {number}"))
    return made


@pytest.mark.parametrize("context", ["sentence", "document"])
@pytest.mark.parametrize("max_length", [8, 32])
def test_every_word_is_asked_for_once_in_the_order_of_the_file(tokenizer, context, max_length):
    sentences = sentences_of(3, 1000, 1, 7, 40, 2, 11)
    encoded = ner.encode(sentences, tokenizer, LABELS, max_length, context)
    rows = encoded.packed(np.arange(len(encoded.lengths)), max_length)
    ids, labels, mask = (rows[name].numpy() for name in ("input_ids", "label_ids", "input_mask"))
    assert (mask.sum(axis=1) == encoded.lengths).all() and encoded.lengths.max() <= max_length
    places = np.nonzero(labels >= 0)
    asked = [(VOCABULARY[i], LABELS[t]) for i, t in zip(ids[places], labels[places], strict=True)]
    assert asked == [(w[0], t) for one in sentences for w, t in zip(one.words, one.tags, strict=True)]

    def model(features, training):  # answers with the label that the first letter stands for
        return {"logits": tf.one_hot(features["input_ids"] % 3, 3)}

    found = ner.tags_of(model, encoded, sentences, LABELS, batch_size=5)
    assert found == [[LABELS[VOCABULARY.index(word[0]) % 3] for word in one.words] for one in sentences]


def test_a_window_shows_what_is_around_its_sentence_in_the_document_alike_on_both_sides(tokenizer):
    words = [["a", "b", "c", "d"], ["e"], ["f", "g", "h", "i"], ["j"]]
    sentences = [Sentence(w, ["O"] * len(w), int(n == 3), "f") for n, w in enumerate(words)]
    encoded = ner.encode(sentences, tokenizer, LABELS, 8, "document")
    shown = [
        "".join(VOCABULARY[i] for i in row if i > 4) for row in encoded.packed(np.arange(4), 8)["input_ids"].numpy()
    ]
    # Six pieces fit; at the end of a document the other side gets what is left over; the last is a document of its own.
    assert shown == ["abcdef", "cdefgh", "defghi", "j"]
    alone = ner.encode(sentences, tokenizer, LABELS, 8)
    shown = ["".join(VOCABULARY[i] for i in row if i > 4) for row in alone.packed(np.arange(4), 8)["input_ids"].numpy()]
    assert shown == ["abcd", "e", "fghi", "j"]


def test_a_word_without_pieces_is_unknown_and_a_huge_one_is_cut(tokenizer):
    sentences = [Sentence(["a", "\u200b", "b" * 50, "c"], ["O", "B-X", "I-X", "O"], 0, "f")]
    encoded = ner.encode(sentences, tokenizer, LABELS, 20)
    assert encoded.firsts.tolist() == [0, 1, 2, 11]
    assert encoded.tokens.numpy()[:3].tolist() == [VOCABULARY.index("a"), 1, VOCABULARY.index("b")]
    assert encoded.label_ids.numpy()[encoded.firsts].tolist() == [0, 1, 2, 0]


def test_whole_entities_count_as_the_conll_evaluation_counts_them():
    # Worked out by hand: an entity is right if its type, its first and its last word are.
    truth = ["B-X I-X O B-Y", "B-X O", "O B-Y I-Y"]
    found = ["B-X I-X O B-X", "I-X O", "B-Y I-Y I-Y"]  # right; wrong type; I- begins one, as in conlleval; too long
    made = [Sentence(["w"] * len(tags.split()), tags.split(), 0, "f") for tags in truth]
    scores = ner.scores(made, [tags.split() for tags in found])
    assert scores["precision"] == scores["recall"] == scores["f1"] == 2 / 4
    assert (scores["X_precision"], scores["X_recall"], scores["Y_f1"]) == (2 / 3, 1.0, 0.0)


def test_entities_have_their_words_and_characters():
    words = ["Jim", "Henson", "was", "Kermit"]
    found = ner.entities(words, ["B-PER", "I-PER", "O", "B-PER"])
    assert [(one["first_word"], one["last_word"], one["text"]) for one in found] == [
        (0, 1, "Jim Henson"),
        (3, 3, "Kermit"),
    ]
    assert all(" ".join(words)[one["start"] : one["end"]] == one["text"] for one in found)


@pytest.mark.parametrize(("word", "separator"), [("York", " "), ("New York", "\t")])
def test_what_is_written_can_be_read_again(tmp_path, word, separator):
    ner.write([Sentence([word, "is"], ["B-X", "O"], 0, "f")], [["O", "B-X"]], tmp_path / "dev")
    text = (tmp_path / "dev.conll").read_text()
    assert text == f"{word} B-X O\nis O B-X\n".replace(" B-X", f"{separator}B-X").replace(" O", f"{separator}O")
    again = ner.read(tmp_path / "dev.conll", columns=ner.Columns(tag=1))
    assert [(one.words, one.tags) for one in again] == [([word, "is"], ["B-X", "O"])]


def test_labels_are_those_of_training_o_first():
    assert ner.tag_names(sentences_of(4)) == ["O", "B-X"]
    with pytest.raises(ValueError, match="all tags are O"):
        ner.tag_names([Sentence(["a"], ["O"], 0, "f, line 1")])
