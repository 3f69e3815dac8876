"""Contexts and endings are read from SWAG's, CODAH's and one's own files, and laid out n to a choice."""

import json

import numpy as np
import pytest

from kbert.tasks import swag
from kbert.text.wordpiece import WordPiece

LETTERS = "abcdefghijklmnopqrstuvwxyz"
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{letter}" for letter in LETTERS), *".,?"]
HEADER = ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,label\n"


def test_the_three_formats_say_the_same(tmp_path):
    files = {
        "swag.csv": HEADER + '0,v,f,"A b, c D","A b, c",D,gold,"e f.",g,h,2\n1,v,f,x,x,,gold,i,j,k,0\n',
        "codah.tsv": "o\tA b, c\tD e f.\tD g\tD h\t2\nn\tx\ti\tj\tk\t0\n",
        "own.jsonl": "".join(
            json.dumps({"context": c, "endings": e, "label": label}) + "\n"
            for c, e, label in (("A b, c", ["D e f.", "D g", "D h"], 2), ("x", ["i", "j", "k"], 0))
        ),
    }
    read = []
    for name, content in files.items():
        (tmp_path / name).write_text(content)
        read.append([choice[:3] for choice in swag.read(tmp_path / name)])
    assert read[0] == read[1] == read[2] == [("A b, c", ("D e f.", "D g", "D h"), 2), ("x", ("i", "j", "k"), 0)]


def test_a_column_whose_name_begins_like_an_endings_is_none(tmp_path):
    (tmp_path / "a.csv").write_text("sent1,sent2,ending0,ending1,ending_source,label\nf,s,a,b,c,1\n")
    assert swag.read(tmp_path / "a.csv")[0].endings == ("s a", "s b")


def test_test_files_may_have_no_labels(tmp_path):
    (tmp_path / "test.csv").write_text(HEADER.replace(",label", "") + "0,v,f,s,a,b,gold,c,d,e\n")
    assert swag.read(tmp_path / "test.csv")[0].label is None


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tsv", "o\tx\ta\tb\t1\no\tx\ta\t0\n", "a.tsv, line 2: 1 endings; expected 2, as in the first row"),
        ("a.tsv", "o\tx\ta\tb\t2\n", "a.tsv, line 1: the label '2' is none of the endings; expected 0 to 1"),
        ("a.csv", HEADER.replace("sent1", "sent") + "0,v,f,s,a,b,gold,c,d,e,1\n", "line 2: KeyError 'sent1'"),
        ("a.jsonl", '{"context": "x", "endings": ["a"], "label": 0}\n', "line 1: 1 endings; expected at least 2"),
        ("a.jsonl", '{"context": "x", "endings": "abc"}\n', "line 1: TypeError endings is no list"),
        ("a.jsonl", '{"context": null, "endings": ["a", "b"]}\n', "line 1: context is null; expected a text"),
        ("a.jsonl", '{"context": "x", "endings": ["a", 1]}\n', "line 1: an ending is 1; expected a text"),
        ("a.jsonl", "", "holds no choices"),
        ("a.txt", "x", "expected .tsv, .csv or .jsonl"),
    ],
)
def test_what_is_no_choice_is_refused_with_file_and_line(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        swag.read(tmp_path / name)


def test_each_ending_is_packed_beside_its_context():
    choices = [swag.Choice("a b", ("c", "d e f"), 1, "f"), swag.Choice("g", ("h h h h h h", "i"), 0, "f")]
    encoded = swag.encode(choices, WordPiece(VOCABULARY), 8)
    assert encoded.lengths.tolist() == [8, 8] and encoded.truncated == 1
    batch = {name: values.numpy() for name, values in encoded.packed([1, 0], 8).items()}
    assert batch["input_ids"].shape == (2, 2, 8) and batch["label_ids"].tolist() == [0, 1]
    shown = [["".join(VOCABULARY[i] for i in row if i > 4) for row in choice] for choice in batch["input_ids"]]
    assert shown == [["ghhhh", "gi"], ["abc", "abdef"]]
    second = np.where(batch["segment_ids"] == 1, batch["input_ids"], 0)
    assert [["".join(VOCABULARY[i] for i in row if i > 4) for row in choice] for choice in second][1] == ["c", "def"]
