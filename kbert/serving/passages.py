"""Questions on passages, words and endings, as graphs on raw text of any length."""

import keras
import numpy as np
import tensorflow as tf

from kbert.serving.questions import IDS, TEXT, as_many, check, graph, names_of_classes, of_ids, rounded
from kbert.text.packing import pack, special_ids
from kbert.text.windows import LEAST_STRIDE, WindowRule, Windows, answer_places, pack_windows, windows
from kbert.text.words import pieces_of_words, words_of

NEVER = -1e30
# That are computed together: what a long passage needs in memory does not grow with it.
TOKENS_AT_ONCE = 8192


def in_parts(function, count, tokens, specs: list[tf.TensorSpec]) -> list[tf.Tensor]:
    """A function of numbers, int64 [n] -> tensors [n, ...] as specified, for 0 to count - 1, part after part.

    count: int64 scalar. tokens: int32 scalar, of each.
    """
    at_once = tf.maximum(TOKENS_AT_ONCE // tf.cast(tf.maximum(tokens, 1), tf.int64), 1)
    parts = tf.cast(tf.maximum((count + at_once - 1) // at_once, 1), tf.int32)  # one for none, too

    def body(part, *arrays):
        begin = tf.cast(part, tf.int64) * at_once
        results = function(tf.range(begin, tf.minimum(begin + at_once, count)))
        return part + 1, *(array.write(part, result) for array, result in zip(arrays, results, strict=True))

    arrays = [tf.TensorArray(spec.dtype, parts, infer_shape=False) for spec in specs]
    _, *arrays = tf.while_loop(lambda part, *_: part < parts, body, (0, *arrays), parallel_iterations=1)
    return [tf.ensure_shape(array.concat(), spec.shape) for array, spec in zip(arrays, specs, strict=True)]


def chosen(of: Windows, rows) -> Windows:
    return Windows(*(tf.gather(values, rows) for values in of))


def usual_windows(limit: int) -> WindowRule:
    """The usual rule, or for sequences of fewer tokens what is left of it."""
    usual = WindowRule()
    return WindowRule(
        min(usual.sequence_length, limit),
        min(usual.stride, max(limit // 4, LEAST_STRIDE)),
        min(usual.question_length, max(limit // 4, 1)),
    )


class FindAnswer:
    """The answer to a question in a passage: string [B], [B] -> a dict of [B], the best span over all windows.

    `answer`, as it stands in the passage, its first and last + 1 character `start` and `end`, the sum of its logits
    `score`, and `no_answer_probability`, that of no answer against this one. Over `threshold`, of the null odds (score
    of none minus score of the best), the answer is "", with -1 and -1; None always answers. What is not given is as the
    model's `answering` has it: `longest` (tokens of an answer), `threshold`, and the fields of a WindowRule. Raises
    ValueError for windows that cannot be.
    """

    def __init__(self, model: keras.Model, tokenizer, **given):
        check(model, tokenizer, "loss")
        usual = {"longest": 30, "threshold": None, **usual_windows(model.config.trained_length)._asdict()}
        given = {**usual, **model.answering, **given}
        longest, threshold = given.pop("longest"), given.pop("threshold")
        self.rule = WindowRule(**given)
        self.rule.check(model.config.max_position_embeddings)
        self.model, self.tokenizer, self.longest, self.threshold = model, tokenizer, longest, threshold
        self.from_text = graph(self._from_text, TEXT, TEXT)
        self.from_ids = graph(self._from_ids, IDS, IDS, IDS)

    def __call__(self, questions, passages) -> dict:
        return self.from_text(tf.convert_to_tensor(questions, tf.string), tf.convert_to_tensor(passages, tf.string))

    def signatures(self) -> dict:
        return {"serving_default": self.from_text, "ids": self.from_ids}

    def _from_ids(self, input_ids, input_mask, segment_ids):
        outputs = self.model(of_ids(input_ids, input_mask, segment_ids), training=False)
        return {name: outputs[name] for name in ("start_logits", "end_logits")}

    def _from_text(self, question, passage):
        question, passage = as_many(question=question, passage=passage)
        asked = self.tokenizer(question)[:, : self.rule.question_length]
        pieces, *offsets = self.tokenizer.tokenize_with_offsets(passage)
        of = windows(asked.row_lengths() + 2, pieces.row_lengths(), self.rule)
        longest = tf.reduce_max(tf.concat([of.places + of.lengths + 1, [3]], 0))
        length = rounded(longest, self.rule.sequence_length)

        def best_spans(rows):
            some = pack_windows(asked, pieces, chosen(of, rows), length, special_ids(self.tokenizer))
            outputs = self.from_ids(**some)
            places = answer_places(of, rows, length, self.rule)
            first, last, *logits = (x[:, 0] for x in self.model.best_spans(outputs, *places, self.longest, best=1))
            nothing = outputs["start_logits"][:, 0] + outputs["end_logits"][:, 0]
            return first, last, tf.where(first >= 0, tf.add_n(logits), NEVER), nothing

        specs = [tf.TensorSpec([None], kind) for kind in (tf.int32, tf.int32, tf.float32, tf.float32)]
        first, last, scores, nothing = in_parts(best_spans, tf.size(of.starts, tf.int64), length, specs)

        # The best window of each passage, and the one that is least sure that there is no answer.
        by_passage = tf.RaggedTensor.from_value_rowids(scores, of.passages, tf.size(question, tf.int64))
        # One column more, as no passage at all has none.
        by_window = tf.pad(by_passage.to_tensor(2 * NEVER), [[0, 0], [0, 1]], constant_values=2 * NEVER)
        best = by_passage.row_starts() + tf.argmax(by_window, axis=1)
        nothing = tf.reduce_min(by_passage.with_flat_values(nothing), axis=1)
        score = tf.gather(scores, best)
        exists = score > NEVER
        odds = tf.where(exists, nothing - score, 0.0)
        is_answered = exists if self.threshold is None else exists & (odds <= self.threshold)

        # From positions in a window to pieces of the passage, to bytes and characters; without an answer to none.
        shift = pieces.row_starts() + tf.gather(of.starts - of.places, best)
        ends = [tf.cast(tf.gather(positions, best), tf.int64) + shift for positions in (first, last)]
        bytes_and_characters = []
        for offset, end in zip(offsets, (*ends, *ends), strict=True):
            values = tf.concat([offset.flat_values, [-1]], 0)
            bytes_and_characters.append(tf.gather(values, tf.where(is_answered, end, tf.size(values, tf.int64) - 1)))
        first_byte, end_byte, start, end = bytes_and_characters
        width = tf.where(is_answered, end_byte - first_byte, 0)
        return {
            "answer": tf.strings.substr(passage, tf.maximum(first_byte, 0), width),
            "start": start,
            "end": end,
            "score": tf.where(exists, score, nothing),
            "no_answer_probability": tf.where(exists, tf.sigmoid(odds), 1.0),
        }


class TagWords:
    """The tags of words parted by white space, and the entities they mark: string [B] -> a dict.

    `words`, `tags` string and `starts`, `ends` int64 (characters), all [B, N], N the words of the text that has most of
    them, "" and -1 where there are fewer; of the entities `entity_types`, `entity_texts` string, `entity_starts`,
    `entity_ends` int64 [B, M]. A text longer than what the model was trained on is tagged in windows.
    """

    padding = {
        "serving_default": {name: ("words", "") for name in ("words", "tags")}
        | {name: ("words", -1) for name in ("starts", "ends")}
        | {f"entity_{name}": ("entities", "") for name in ("types", "texts")}
        | {f"entity_{name}": ("entities", -1) for name in ("starts", "ends")}
    }

    def __init__(self, model: keras.Model, tokenizer, labels: list[str] | None = None):
        check(model, tokenizer, "loss")
        self.labels = names_of_classes(model, labels)
        self.model, self.tokenizer = model, tokenizer
        limit = model.config.trained_length
        self.rule = WindowRule(limit, max((limit - 2) // 2, 1))
        self.from_text = graph(self._from_text, TEXT)
        self.from_ids = graph(self._from_ids, IDS, IDS, IDS)

    def __call__(self, texts) -> dict:
        return self.from_text(tf.convert_to_tensor(texts, tf.string))

    def signatures(self) -> dict:
        return {"serving_default": self.from_text, "ids": self.from_ids}

    def _from_ids(self, input_ids, input_mask, segment_ids):
        outputs = self.model(of_ids(input_ids, input_mask, segment_ids), training=False)
        return {"probabilities": tf.nn.softmax(outputs["logits"])}

    def _from_text(self, text):
        words, *offsets = words_of(text)
        tags = words.with_flat_values(self._tags(words))
        texts = {"words": words, "tags": tags.with_flat_values(tf.gather(tf.constant(self.labels), tags.flat_values))}
        answer = {name: values.to_tensor("") for name, values in texts.items()}
        answer |= {"starts": offsets[2].to_tensor(-1), "ends": offsets[3].to_tensor(-1)}
        return answer | self._entities(text, tags, offsets)

    def _tags(self, words):
        """The number of the likeliest tag of each word, [B, (words)] -> int64 [all words]."""
        room = self.rule.sequence_length - 2
        by_word = pieces_of_words(words.flat_values, self.tokenizer, most=max(room // 2, 1))
        pieces = tf.RaggedTensor.from_row_splits(by_word, words.row_splits).merge_dims(1, 2)  # [B, (pieces)]
        of = windows(tf.ones_like(pieces.row_lengths()), pieces.row_lengths(), self.rule)
        length = rounded(tf.reduce_max(tf.concat([of.lengths + 2, [3]], 0)), self.rule.sequence_length)

        def likeliest(rows):
            features = pack_windows(None, pieces, chosen(of, rows), length, special_ids(self.tokenizer))
            return (tf.argmax(self.from_ids(**features)["probabilities"], axis=-1),)

        count = tf.size(of.starts, tf.int64)
        [found] = in_parts(likeliest, count, length, [tf.TensorSpec([None, None], tf.int64)])  # [W, S]
        is_asked, _ = answer_places(of, tf.range(count), length, self.rule)
        window, position = tf.unstack(tf.where(is_asked), axis=1)
        starts = tf.gather(pieces.row_starts(), of.passages) + of.starts - 1
        piece = tf.gather(starts, window) + position
        tags = tf.scatter_nd(piece[:, None], found[is_asked], tf.shape(pieces.flat_values, tf.int64))
        return tf.gather(tags, by_word.row_starts())

    def _entities(self, text, tags, offsets):
        """Entities as the CoNLL evaluation finds them in tags: B- and S- begin one, I- and E- another type's too."""
        kinds, begins, finishes = tag_parts(self.labels)
        flat, rows = tags.flat_values, tags.value_rowids()
        kind = tf.gather(kinds, flat)
        before = tf.concat([[0], kind[:-1]], 0)
        same_row = tf.concat([[False], rows[1:] == rows[:-1]], 0)
        ended = tf.concat([[True], tf.gather(finishes, flat)[:-1]], 0)
        is_first = (kind > 0) & (tf.gather(begins, flat) | ended | (kind != before) | ~same_row)
        goes_on = tf.concat([(kind[1:] == kind[:-1]) & ~is_first[1:] & same_row[1:], [False]], 0)
        is_last = (kind > 0) & ~goes_on
        first, last = tf.where(is_first)[:, 0], tf.where(is_last)[:, 0]
        of = tf.gather(rows, first)

        def ragged(values):
            return tf.RaggedTensor.from_value_rowids(values, of, tags.nrows())

        begins_and_ends = zip(offsets, (first, last) * 2, strict=True)
        first_byte, end_byte, start, end = (tf.gather(values.flat_values, place) for values, place in begins_and_ends)
        names = ["", *entity_types(self.labels)]
        texts = tf.strings.substr(tf.gather(text, of), first_byte, end_byte - first_byte)
        return {
            "entity_types": ragged(tf.gather(tf.constant(names), tf.gather(kind, first))).to_tensor(""),
            "entity_texts": ragged(texts).to_tensor(""),
            "entity_starts": ragged(start).to_tensor(-1),
            "entity_ends": ragged(end).to_tensor(-1),
        }


def entity_types(labels: list[str]) -> list[str]:
    return sorted({label.partition("-")[2] or label for label in labels} - {"O"})


def tag_parts(labels: list[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of each tag the number of its type (0: O; by name from 1), whether it begins an entity, whether it ends one."""
    types = entity_types(labels)
    kinds = [0 if label == "O" else 1 + types.index(label.partition("-")[2] or label) for label in labels]
    begins = [label.startswith(("B-", "S-")) for label in labels]
    return np.array(kinds), np.array(begins), np.array([label.startswith(("E-", "S-")) for label in labels])


class ChooseEnding:
    """Which ending goes on from a context: string [B], [B, N] -> `probabilities` float32 [B, N], `choice` int64 [B]."""

    def __init__(self, model: keras.Model, tokenizer):
        check(model, tokenizer, "loss")
        self.model, self.tokenizer = model, tokenizer
        self.from_text = graph(self._from_text, TEXT, tf.TensorSpec([None, None], tf.string))
        self.from_ids = graph(self._from_ids, *[tf.TensorSpec([None, None, None], tf.int32)] * 3)

    def __call__(self, contexts, endings) -> dict:
        return self.from_text(tf.convert_to_tensor(contexts, tf.string), tf.convert_to_tensor(endings, tf.string))

    def signatures(self) -> dict:
        return {"serving_default": self.from_text, "ids": self.from_ids}

    def _from_ids(self, input_ids, input_mask, segment_ids):
        outputs = self.model(of_ids(input_ids, input_mask, segment_ids), training=False)
        probabilities = tf.nn.softmax(outputs["logits"])
        return {"probabilities": probabilities, "choice": tf.argmax(probabilities, axis=1)}

    def _from_text(self, context, endings):
        context, endings = as_many(context=context, endings=endings)
        count = tf.shape(endings)[1]
        contexts = self.tokenizer(tf.repeat(context, count))
        tokens = self.tokenizer(tf.reshape(endings, [-1]))
        lengths = contexts.row_lengths() + tokens.row_lengths() + 3
        length = rounded(tf.reduce_max(tf.concat([lengths, [4]], 0)), self.model.config.trained_length)

        def some(rows):
            pairs = tf.reshape(rows[:, None] * tf.cast(count, tf.int64) + tf.range(tf.cast(count, tf.int64)), [-1])
            both = (tf.gather(pieces, pairs) for pieces in (contexts, tokens))
            features = pack(*both, length, special_ids(self.tokenizer))
            shape = tf.stack([tf.size(rows), count, length])
            answer = self.from_ids(**{name: tf.reshape(value, shape) for name, value in features.items()})
            return answer["probabilities"], answer["choice"]

        specs = [tf.TensorSpec([None, None], tf.float32), tf.TensorSpec([None], tf.int64)]
        found = in_parts(some, tf.size(context, tf.int64), count * length, specs)
        return dict(zip(("probabilities", "choice"), found, strict=True))
