"""One thing grows alone; the arithmetic's line goes through the base; a corpus is parted by whole documents."""

import json
from pathlib import Path

import pytest

from kbert.benchmark.growth import (
    PARTS,
    Curve,
    Point,
    each_document,
    of_corpus,
    of_steps,
    parts_of,
    plot,
    settings,
    tell,
)
from kbert.benchmark.rounds import Result
from kbert.config import BertConfig
from kbert.training import planning

BASE = planning.Setting(BertConfig.from_size("tiny", vocab_size=100), 4, 32, 5)


def curve(*costs: float) -> Curve:
    """Of lengths 32, 16 and 64, whose tokens take 2, 1 and 4 operations and so many seconds each."""
    points = [Point(*told, None) for told in ((32, 100, 2), (16, 50, 1), (64, 200, 4))]
    found = [
        Result(f"length {point.value}", {}, [{"seconds": cost * point.tokens}], 10**6)
        for point, cost in zip(points, costs, strict=False)
    ]
    return Curve(
        "length", points, [*found, *(Result("length 64", reason="out of memory") for _ in points[len(found) :])]
    )


def test_one_thing_varies_at_a_time_and_what_has_no_other_value_is_left_out():
    found = settings(BASE, [64, 32], [4], [1], [256])
    assert {name: list(varied) for name, varied in found.items()} == {"length": [32, 64], "L": [2, 1], "H": [128, 256]}
    assert all(next(iter(varied.values())) == BASE for varied in found.values())
    assert (found["length"][64].sequence_length, found["length"][64].predictions) == (64, 10)
    wide = found["H"][256]
    assert (wide.config.num_attention_heads, wide.config.head_size, wide.config.intermediate_size) == (4, 64, 1024)
    assert wide.batch_size == 4 and wide.config.num_hidden_layers == 2


def test_a_token_of_any_batch_has_as_many_operations_and_one_of_a_longer_sequence_more(tmp_path):
    batches = of_steps("batch", settings(BASE, [], [8], [], [])["batch"], tmp_path)
    assert len({point.operations for point in batches.points}) == 1
    assert [point.tokens for point in batches.points] == [4 * 32, 8 * 32]
    short, long = of_steps("length", settings(BASE, [64], [], [], [])["length"], tmp_path).points
    # Scores and attended values: forward and backward three products of 2 x H numbers a token for each other token, in
    # the last layer of 5 more vectors in a row; but of its 10 H x H weights, 11 of 64 and no longer 6 of 32 make use.
    more = 3 * 2 * (2 * 128 * (32 + 5) - 10 * 128**2 * (6 / 32 - 11 / 64))
    assert long.operations > short.operations and long.operations - short.operations == pytest.approx(more, rel=0.05)


def test_the_line_goes_through_the_base_and_grows_as_the_operations_do():
    assert curve(3.0, 1.0, 7.0).line() == {16: 1.5, 32: 3.0, 64: 6.0}


def test_the_table_the_numbers_and_the_plot_have_what_was_measured_by_value(tmp_path, capsys):
    one = curve(3e-1, 1e-1)
    tell([one], str(tmp_path))
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert metrics["length 16, us/token"] == pytest.approx(1e5) and metrics["length 32, ms"] == pytest.approx(3e4)
    assert metrics["length 16, arithmetic's us/token"] == pytest.approx(1.5e5)
    assert metrics["length 32, peak MB"] == 1 and "length 64, ms" not in metrics
    out = capsys.readouterr().out
    assert "length 64: out of memory" in out and out.index("length 16") < out.index("length 32")
    assert "30,000" in out and "e+" not in out
    lines = [json.loads(line) for line in (tmp_path / "rounds.jsonl").read_text().splitlines()]
    assert [(line["work"], line["name"]) for line in lines][1] == ("growth with length", "length 16")
    line, dots = plot(one).axes[0].lines
    assert list(line.get_xdata()) == [16, 32, 64] and line.get_ydata() == pytest.approx([1.5e5, 3e5, 6e5])
    assert list(dots.get_xdata()) == [16, 32] and dots.get_ydata() == pytest.approx([1e5, 3e5])
    assert (tmp_path / "length.png").read_bytes().startswith(b"\x89PNG")


def test_a_document_ends_at_a_blank_line_or_with_its_file(tmp_path):
    for name, text in (("a", "\n\none\ntwo\n \n\nthree"), ("b", "four\n\n"), ("c", "\n")):
        (tmp_path / name).write_text(text)
    files = [str(tmp_path / name) for name in "abc"]
    assert list(each_document(files, "blank-line")) == [b"one\ntwo\n", b"three", b"four\n"]
    assert list(each_document(files, "file")) == [b"one\ntwo\nthree", b"four\n"]


@pytest.mark.parametrize("documents", ["blank-line", "file"])
def test_a_part_has_every_eighth_fourth_or_second_document(documents, tmp_path):
    (tmp_path / "parts").mkdir()
    texts = [f"text {number}" for number in range(24)]
    if documents == "blank-line":
        texts = ["\n\n".join(texts[:13]), "\n\n".join(texts[13:])]
    files = [str(tmp_path / f"{number:02}") for number in range(len(texts))]
    for path, text in zip(files, texts, strict=True):
        Path(path).write_text(text)
    parts = parts_of(files, documents, tmp_path / "parts")
    held = {part: sorted(text.split()[1] for text in each_document(paths, documents)) for part, paths in parts.items()}
    assert held == {part: sorted(b"%d" % number for number in range(0, 24, part)) for part in PARTS}
    corpus = of_corpus({"files": files, "documents": documents, "tokens": 7}, tmp_path / "parts")
    assert [point.operations for point in corpus.points] == [1] * len(PARTS)
    with pytest.raises(ValueError, match="1 documents, expected at least 16"):
        parts_of(files[:1], "file", tmp_path / "parts")
