"""What the SavedModel of a fine-tuned model answers on 500 real inputs, beside what the recipes' own code answers.

    python tests/parity/served.py MODEL FILE

MODEL is a folder that fine_tune_squad.py, fine_tune_ner.py or fine_tune_swag.py wrote, or one with a plain encoder;
FILE holds what such a model is asked: SQuAD's JSON, CoNLL columns, endings, or lines of text. The last ten passages,
and the last ten texts, are put together from others until they have 5,000 words.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import tensorflow as tf

import kbert
from kbert.tasks import ner, squad, squad_answers, swag
from kbert.tasks.batches import logits_of
from kbert.text.windows import WindowRule

INPUTS, LONG, WORDS, PART = 500, 10, 5_000, 25


def longer(texts: list[str], first: int) -> str:
    """Texts from number `first` on, put together until they have 5,000 words."""
    words = []
    while len(words) < WORDS:
        words += texts[first % len(texts)].split()
        first += 1
    return " ".join(words[:WORDS])


def with_long_ones(texts: list[str]) -> list[str]:
    plain = texts[: INPUTS - LONG]
    return plain + [longer(texts, 7 * number) for number in range(LONG)]


def served(model, tokenizer, **inputs) -> list[dict]:
    """A row of answers for each input, by the signature on raw text of an export, loaded again."""
    with tempfile.TemporaryDirectory() as folder:
        loaded = tf.saved_model.load(kbert.export(model, tokenizer, Path(folder) / "it"))
    rows = []
    for begin in range(0, INPUTS, PART):
        part = {name: tf.constant(values[begin : begin + PART]) for name, values in inputs.items()}
        answers = {name: value.numpy() for name, value in loaded.signatures["serving_default"](**part).items()}
        count = len(next(iter(answers.values())))
        rows += [{name: values[row] for name, values in answers.items()} for row in range(count)]
    return rows


def answers(model, tokenizer, file: str) -> tuple[int, float]:
    """How many answers differ, and the largest difference of the probability that there is none."""
    questions = squad.read(file)[0]
    asked = [one._replace(answers=[], starts=[]) for one in questions[:INPUTS]]
    passages = list(dict.fromkeys(question.passage for question in questions))
    for number in range(LONG):
        asked[-1 - number] = asked[-1 - number]._replace(passage=longer(passages, 7 * number))
    told = model.answering
    rule = WindowRule(*(told.get(name, usual) for name, usual in zip(WindowRule._fields, WindowRule(), strict=True)))
    answering = squad_answers.AnswerRule(longest=told.get("longest", 30), no_answer=True)
    encoded = squad.encode(asked, tokenizer, rule)
    found = squad_answers.join(asked, encoded, squad_answers.best_spans(model, encoded, rule, answering), answering)
    threshold = np.inf if told.get("threshold") is None else told["threshold"]
    rows = served(model, tokenizer, question=[q.text for q in asked], passage=[q.passage for q in asked])
    other, difference = 0, 0.0
    for question, row in zip(asked, rows, strict=True):
        odds = found.null_odds[question.id]
        best = "" if odds > threshold else squad_answers.best_texts(found)[question.id]
        cut = question.passage[row["start"] : row["end"]] if row["start"] >= 0 else ""
        other += not (row["answer"].decode() == best == cut)
        difference = max(difference, abs(row["no_answer_probability"] - 1 / (1 + np.exp(-odds))))
    print(f"{len(encoded.lengths)} windows, {sum(bool(row['answer']) for row in rows)} answers that are a text")
    return other, difference


def entities(model, tokenizer, file: str) -> tuple[int, float]:
    """How many texts have other words, tags or entities; tags have no probability."""
    texts = with_long_ones([" ".join(sentence.words) for sentence in ner.read(file)])
    sentences = [ner.Sentence(text.split(), ["O"] * len(text.split()), n, "") for n, text in enumerate(texts)]
    encoded = ner.encode(sentences, tokenizer, model.labels, model.config.trained_length)
    tags = ner.tags_of(model, encoded, sentences, model.labels)
    other = found = 0
    for text, sentence, expected, row in zip(texts, sentences, tags, served(model, tokenizer, text=texts), strict=True):
        mine = [(e["type"], e["text"]) for e in ner.entities(sentence.words, expected)]
        places = [(s, e) for s, e in zip(row["entity_starts"], row["entity_ends"], strict=True) if s >= 0]
        named = [kind.decode() for kind in row["entity_types"] if kind]
        same = [word.decode() for word in row["words"] if word] == sentence.words
        same = same and [tag.decode() for tag in row["tags"] if tag] == list(expected)
        other += not (same and list(zip(named, [text[s:e] for s, e in places], strict=True)) == mine)
        found += len(mine)
    print(f"{sum(len(sentence.words) for sentence in sentences)} words, {found} entities")
    return other, 0.0


def endings(model, tokenizer, file: str) -> tuple[int, float]:
    """How many choices differ, and the largest difference of a probability."""
    choices = swag.read(file)[:INPUTS]
    contexts = with_long_ones([choice.context for choice in choices])
    choices = [c._replace(context=context) for c, context in zip(choices, contexts, strict=True)]
    logits = logits_of(model, swag.encode(choices, tokenizer, model.config.trained_length))
    rows = served(model, tokenizer, context=contexts, endings=[list(choice.endings) for choice in choices])
    expected = tf.nn.softmax(logits).numpy()
    other = sum(row["choice"] != one.argmax() for row, one in zip(rows, expected, strict=True))
    return other, float(np.abs(np.stack([row["probabilities"] for row in rows]) - expected).max())


def vectors(model, tokenizer, file: str) -> tuple[int, float]:
    """0, and the largest difference of a mean vector's element."""
    from kbert.tasks.vectors import vectors_of

    lines = [line for line in Path(file).read_text().splitlines() if line.strip()]
    features = kbert.BertFeatures(model if isinstance(model, kbert.Bert) else model.bert, unit="mean")
    texts = with_long_ones(lines)
    expected = vectors_of(texts, features, tokenizer, "text", features.bert.config.trained_length)
    rows = served(features, tokenizer, text=texts)
    pairs = zip(rows, expected, strict=True)
    return 0, max(float(np.abs(row["vectors"] - one.values).max()) for row, one in pairs)


def main(folder: str, file: str) -> None:
    model, tokenizer = kbert.load(folder)
    kinds = {"BertSpanPredictor": answers, "BertTagger": entities, "BertMultipleChoice": endings}
    other, difference = kinds.get(type(model).__name__, vectors)(model, tokenizer, file)
    print(f"{INPUTS} inputs: {other} answered otherwise, largest difference of a number {difference:.1e}")
    sys.exit(1 if other or difference > 1e-4 else 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
