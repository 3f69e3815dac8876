"""Answers, tags and choices of a graph on raw text are those that the parts it is made of give in Python."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from stranger import module_of

from kbert.config import BertConfig
from kbert.model.bert import Bert
from kbert.model.fine_tuning import BertClassifier, BertMultipleChoice, BertRegressor, BertSpanPredictor, BertTagger
from kbert.model_directory import save
from kbert.serving.export import export
from kbert.serving.passages import ChooseEnding, FindAnswer, TagWords
from kbert.tasks import ner, squad, squad_answers, swag
from kbert.tasks.batches import logits_of
from kbert.text.windows import WindowRule
from kbert.text.wordpiece import WordPiece

LETTERS = "abcdefghijklmnopqrstuvwxyz"
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{letter}" for letter in LETTERS), *".,[]"]
POSITIONS = 32
LABELS = ["O", "B-X", "I-X", "B-Y", "I-Y"]


@pytest.fixture(scope="module")
def tokenizer():
    return WordPiece(VOCABULARY)


def new(head, sequence_length=None, **options):
    keras.utils.set_random_seed(4)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    sizes |= {"vocab_size": len(VOCABULARY), "max_position_embeddings": POSITIONS, "initializer_range": 0.4}
    return head(Bert(BertConfig(**sizes, sequence_length=sequence_length)), **options)


def texts(count: int, longest: int, seed: int) -> list[str]:
    random = np.random.default_rng(seed)
    words = ["ab", "c", "é\u0301f", "日本", "x.y", "q,", "\u200b", "Zz", "hello"]
    return ["  ".join(random.choice(words, random.integers(1, longest))) for _ in range(count)]


def test_an_answer_is_that_of_all_windows_with_its_place(tokenizer):
    model, rule = new(BertSpanPredictor), WindowRule(POSITIONS, 8, 8)
    questions = [
        squad.Question(str(n), q, p, [], [])
        for n, (q, p) in enumerate(zip(texts(30, 12, 1), texts(30, 60, 2), strict=True))
    ]
    encoded = squad.encode(questions, tokenizer, rule)
    assert len(encoded.lengths) > 60
    expected = squad_answers.AnswerRule(n_best=1, longest=6, no_answer=True)
    found = squad_answers.join(questions, encoded, squad_answers.best_spans(model, encoded, rule, expected), expected)
    ask = FindAnswer(model, tokenizer, longest=6, **rule._asdict())
    answer = {k: v.numpy() for k, v in ask([q.text for q in questions], [q.passage for q in questions]).items()}
    for number, question in enumerate(questions):
        best = next((one for one in found.n_best[question.id] if one.text), None)
        if best is None:  # a passage of which nothing is left
            assert answer["answer"][number] == b"" and answer["no_answer_probability"][number] == 1
            continue
        assert answer["answer"][number].decode() == best.text
        assert question.passage[answer["start"][number] : answer["end"][number]] == best.text
        assert answer["score"][number] == pytest.approx(best.score, abs=1e-4)
        odds = found.null_odds[question.id]
        assert answer["no_answer_probability"][number] == pytest.approx(1 / (1 + np.exp(-odds)), abs=1e-4)


def test_over_the_threshold_and_in_an_empty_passage_there_is_no_answer(tokenizer):
    model = new(BertSpanPredictor)
    asked = (["a", "b"], ["c d", ""])
    always, never = FindAnswer(model, tokenizer)(*asked), FindAnswer(model, tokenizer, threshold=-1e9)(*asked)
    assert always["answer"].numpy()[0] in (b"c", b"d", b"c d") and always["answer"].numpy()[1] == b""
    assert never["answer"].numpy().tolist() == [b"", b""] and never["start"].numpy().tolist() == [-1, -1]
    assert always["no_answer_probability"].numpy()[1] == 1 and always["end"].numpy()[1] == -1
    assert FindAnswer(model, tokenizer)([], [])["answer"].shape == (0,)
    model.answering = {"threshold": -1e9, "longest": 1, "stride": 8}
    assert FindAnswer(model, tokenizer)(*asked)["start"].numpy().tolist() == [-1, -1], "as the model has it"
    again = BertSpanPredictor.from_config(model.get_config())
    assert FindAnswer(again, tokenizer).rule.stride == 8 and FindAnswer(again, tokenizer, threshold=1.0).threshold == 1
    model.answering = {"sequence_length": 32, "stride": 24, "question_length": 20}
    assert FindAnswer(model, tokenizer).rule == (32, 24, 20), "not what is usual for so few positions"
    with pytest.raises(ValueError, match="stride is 0, expected 8 to sequence_length"):
        FindAnswer(model, tokenizer, stride=0)
    with pytest.raises(ValueError, match="sequence_length is 64, expected at most 32, the positions"):
        FindAnswer(model, tokenizer, sequence_length=64)
    with pytest.raises(tf.errors.InvalidArgumentError, match="question has 2 rows and passage 1, expected as many"):
        FindAnswer(model, tokenizer)(["a", "b"], ["c"])


@pytest.mark.parametrize("trained_on", [None, 16])
def test_words_are_tagged_in_windows_and_make_entities(tokenizer, trained_on):
    model, asked = new(BertTagger, trained_on, num_labels=5), [*texts(20, 60, 3), "", " a "]
    answer = {name: value.numpy() for name, value in TagWords(model, tokenizer, LABELS)(asked).items()}
    sentences = [ner.Sentence(text.split(), ["O"] * len(text.split()), n, "") for n, text in enumerate(asked)]
    some = [one for one in sentences if one.words]
    encoded = ner.encode(some, tokenizer, LABELS, trained_on or POSITIONS)
    assert len(encoded.lengths) > len(some)
    tags = iter(ner.tags_of(model, encoded, some, LABELS))
    kinds = 0
    for row, (text, sentence) in enumerate(zip(asked, sentences, strict=True)):
        count = len(sentence.words)
        expected = next(tags) if count else []
        assert [word.decode() for word in answer["words"][row] if word] == sentence.words
        assert [tag.decode() for tag in answer["tags"][row][:count]] == expected
        places = list(zip(answer["starts"][row], answer["ends"][row], strict=True))
        assert [text[start:end] for start, end in places[:count]] == sentence.words
        assert (answer["starts"][row][count:] == -1).all()
        entities = ner.entities(sentence.words, expected)
        kinds += len(entities)
        for place, entity in enumerate(entities):
            start, end = places[entity["first_word"]][0], places[entity["last_word"]][1]
            assert answer["entity_types"][row][place].decode() == entity["type"]
            assert (answer["entity_starts"][row][place], answer["entity_ends"][row][place]) == (start, end)
            assert answer["entity_texts"][row][place].decode() == text[start:end]
        assert (answer["entity_starts"][row][len(entities) :] == -1).all()
    assert kinds > 20


@pytest.mark.parametrize("scheme", [("B", "I"), ("B", "I", "E", "S")])
def test_entities_are_those_that_seqeval_finds(tokenizer, scheme):
    labels = ["O", *(f"{kind}-{name}" for kind in scheme for name in "XY")]
    asker = TagWords(new(BertTagger, num_labels=len(labels)), tokenizer, labels)
    random = np.random.default_rng(5)
    for _ in range(20):
        numbers = [random.integers(0, len(labels), random.integers(0, 9)) for _ in range(4)]
        rows = tf.RaggedTensor.from_row_lengths(np.concatenate(numbers), [len(row) for row in numbers])
        offsets = [
            tf.ragged.map_flat_values(tf.ones_like, rows) * 0 + tf.ragged.range(rows.row_lengths()) for _ in "1234"
        ]
        found = asker._entities(tf.constant(["a" * 20] * 4), rows, offsets)
        for row, tags in enumerate(numbers):
            entities = ner.entities(["a"] * len(tags), [labels[number] for number in tags])
            starts, ends = (found[f"entity_{end}"].numpy()[row][: len(entities)].tolist() for end in ("starts", "ends"))
            assert [(e["first_word"], e["last_word"]) for e in entities] == list(zip(starts, ends, strict=True))
            names = [name.decode() for name in found["entity_types"].numpy()[row] if name]
            assert names == [entity["type"] for entity in entities]


@pytest.mark.parametrize("trained_on", [None, 16])
def test_the_choice_is_the_models(tokenizer, trained_on):
    model = new(BertMultipleChoice, trained_on)
    choices = [swag.Choice(c, tuple(texts(3, 9, n)), None, "") for n, c in enumerate(texts(12, 40, 6))]
    answer = ChooseEnding(model, tokenizer)([c.context for c in choices], [c.endings for c in choices])
    logits = logits_of(model, swag.encode(choices, tokenizer, trained_on or POSITIONS))
    np.testing.assert_allclose(answer["probabilities"], keras.ops.softmax(logits), atol=1e-5)
    assert answer["choice"].numpy().tolist() == logits.argmax(axis=1).tolist()


@pytest.mark.parametrize(
    "head",
    [
        BertSpanPredictor,
        pytest.param(BertTagger, marks=pytest.mark.long),
        BertMultipleChoice,
        pytest.param(BertClassifier, marks=pytest.mark.long),
        pytest.param(BertRegressor, marks=pytest.mark.long),
    ],
)
def test_the_recipe_shows_what_each_answers(tokenizer, tmp_path, capsys, head):
    recipe = module_of("export")
    model = new(head, **({"num_labels": 5} if head in (BertTagger, BertClassifier) else {}))
    save(model, tokenizer, tmp_path / "model")
    recipe.main(str(tmp_path / "model"), "mine", output=str(tmp_path / "served"))
    printed = capsys.readouterr().out
    shown = {BertSpanPredictor: "no_answer_probability", BertTagger: "entity_types", BertMultipleChoice: "choice"}
    shown |= {BertClassifier: "label", BertRegressor: "value"}
    assert printed.count(shown[head]) >= 2, "once among the outputs, once as an answer"


@pytest.mark.long
@pytest.mark.parametrize("head", [BertSpanPredictor, BertTagger, BertMultipleChoice])
def test_each_is_exported_and_answers_alike(tokenizer, tmp_path, head):
    model = new(head, **({"num_labels": 5} if head is BertTagger else {}))
    if head is BertTagger:
        model.labels = LABELS
    inputs = {
        BertSpanPredictor: {"question": ["a b"], "passage": ["c d. " * 40]},
        BertTagger: {"text": ["ab c x.y " * 10, "q"]},
        BertMultipleChoice: {"context": ["a b"], "endings": [["c", "d e"]]},
    }[head]
    asker = {
        BertSpanPredictor: lambda: FindAnswer(model, tokenizer),
        BertTagger: lambda: TagWords(model, tokenizer, LABELS),
        BertMultipleChoice: lambda: ChooseEnding(model, tokenizer),
    }[head]()
    signatures = tf.saved_model.load(export(model, tokenizer, tmp_path / "it")).signatures
    assert set(signatures) == {"serving_default", "ids", "attention"}
    served = signatures["serving_default"](**{name: tf.constant(value) for name, value in inputs.items()})
    expected = asker(*inputs.values())
    assert served.keys() == expected.keys()
    for name, value in expected.items():
        if value.dtype == tf.string:
            assert served[name].numpy().tolist() == value.numpy().tolist()
        else:
            np.testing.assert_allclose(served[name], value, atol=1e-5)


def test_what_is_much_is_computed_in_parts_with_the_same_answer(tokenizer, monkeypatch):
    spans, tagger, choosing = new(BertSpanPredictor), new(BertTagger, num_labels=5), new(BertMultipleChoice)
    endings = [[f"{one} {two}" for two in "abc"] for one in texts(5, 9, 7)]
    passages = [" ".join(texts(1, 400, 5)), "", *texts(3, 60, 6)]

    def answers():
        found = FindAnswer(spans, tokenizer, stride=8)(["ab"] * len(passages), passages)
        return (
            found | TagWords(tagger, tokenizer, LABELS)(passages) | ChooseEnding(choosing, tokenizer)(passages, endings)
        )

    at_once = answers()
    monkeypatch.setattr("kbert.serving.passages.TOKENS_AT_ONCE", 3 * POSITIONS)
    for name, values in answers().items():
        expected = at_once[name].numpy()
        if values.dtype == tf.float32:
            np.testing.assert_allclose(values, expected, atol=1e-5)
        else:
            assert (values.numpy() == expected).all(), name
