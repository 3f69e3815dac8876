"""What a trained model can be asked, as graphs on raw text: blanks, next sentences, classes, vectors, attention.

A question is one object with one graph: called in Python it answers, and export writes that same graph, tokenizer
included, so a served answer equals the in-process one. Passages, words and endings are in passages.py.
"""

import keras
import tensorflow as tf

from kbert.text import packing
from kbert.text.plain import PlainRow
from kbert.text.wordpiece import WordPiece

MASK = "[MASK]"
# Sequences are as long as the longest of the batch, rounded up: a short request is quick, and few shapes occur, as
# kernels are prepared for each.
LENGTH_STEP = 8

TEXT = tf.TensorSpec([None], tf.string)
IDS = tf.TensorSpec([None, None], tf.int32)


class FillBlanks:
    """The `k` likeliest pieces for each [MASK] of raw text.

    Called with texts [B] it returns a dict of `pieces` string, `probabilities` float32 and `ids` int32, each [B, M, k],
    M being the number of masks in the text that has most of them. Where a text has fewer masks, or its mask lies beyond
    the length that the model was trained on, they are "", 0 and -1 (which kbert's server leaves out at the
    end). Raises ValueError if the model has no masked-LM head or sees only what is left of the blank, and if k is
    outside 1..V.
    """

    # By signature, of the outputs whose rows are filled up: of what there are so many, and with what.
    padding = {"serving_default": {"pieces": ("masks", ""), "probabilities": ("masks", 0.0), "ids": ("masks", -1)}}

    def __init__(self, model: keras.Model, tokenizer, k: int = 5):
        check(model, tokenizer, "masked_lm_loss")
        if model.config.causal:
            raise ValueError("the model's config has causal = True: it cannot see what follows a blank")
        if not 1 <= k <= tokenizer.vocab_size:
            raise ValueError(f"k is {k}, expected 1 to {tokenizer.vocab_size}, the size of the vocabulary")
        self.model, self.tokenizer, self.k = model, tokenizer, k
        self.from_text = graph(self._from_text, TEXT)
        self.from_ids = graph(self._from_ids, IDS, IDS, IDS, IDS)

    def __call__(self, texts) -> dict:
        return self.from_text(text=tf.convert_to_tensor(texts, tf.string))

    def signatures(self) -> dict:
        return {"serving_default": self.from_text, "ids": self.from_ids}

    def _from_text(self, text):
        tokens = pieces_and_masks(self.tokenizer, text)  # [B, (pieces)]
        features = packed(self, tokens)
        is_mask = features["input_ids"] == self.tokenizer.mask_id  # [B, S]
        rows, positions = tf.unstack(tf.where(is_mask), axis=1)
        found = tf.RaggedTensor.from_value_rowids(tf.cast(positions, tf.int32), rows, tf.size(text, tf.int64))
        asked = tf.reduce_sum(tf.cast(tokens == self.tokenizer.mask_id, tf.int64), axis=1)  # [B]
        most = tf.reduce_max(tf.concat([asked, [0]], 0))  # M
        positions = found.to_tensor(shape=tf.stack([-1, most]))  # [B, M]
        answers = self.from_ids(**features, masked_lm_positions=positions)

        fits = tf.sequence_mask(found.row_lengths(), most)[:, :, None]  # [B, M, 1]
        pieces = tf.gather(tf.constant(self.tokenizer.vocabulary), answers["ids"])
        return {
            "pieces": tf.where(fits, pieces, ""),
            "probabilities": tf.where(fits, answers["probabilities"], 0.0),
            "ids": tf.where(fits, answers["ids"], -1),
        }

    def _from_ids(self, input_ids, input_mask, segment_ids, masked_lm_positions):
        length = tf.shape(input_ids)[1]
        is_there = (masked_lm_positions >= 0) & (masked_lm_positions < length)  # or it would be another row's
        told = tf.strings.format("masked_lm_positions: expected 0 to {}, the last of input_ids", length - 1)
        [positions] = provided(tf.reduce_all(is_there), told, masked_lm_positions)
        features = of_ids(input_ids, input_mask, segment_ids)
        outputs = self.model({**features, "masked_lm_positions": positions}, training=False)
        logits = outputs["masked_lm_logits"]  # [B, P, V]
        best, ids = tf.math.top_k(logits, self.k)
        probabilities = tf.exp(best - tf.reduce_logsumexp(logits, axis=-1, keepdims=True))
        return {"probabilities": probabilities, "ids": ids}


class NextSentence:
    """Whether B follows A: texts_a, texts_b [B] -> `probabilities` float32 [B, 2] of (B follows A, B is random)."""

    def __init__(self, model: keras.Model, tokenizer):
        check(model, tokenizer, "next_sentence_loss")
        self.model, self.tokenizer = model, tokenizer
        self.from_pairs = graph(self._from_pairs, TEXT, TEXT)

    def __call__(self, texts_a, texts_b) -> dict:
        return self.from_pairs(tf.convert_to_tensor(texts_a, tf.string), tf.convert_to_tensor(texts_b, tf.string))

    def signatures(self) -> dict:
        alone = {} if "masked_lm_loss" in self.model.loss_names else {"serving_default": self.from_pairs}
        return {"next_sentence": self.from_pairs} | alone

    def _from_pairs(self, text_a, text_b):
        text_a, text_b = as_many(text_a=text_a, text_b=text_b)
        features = packed(self, self.tokenizer(text_a), self.tokenizer(text_b))
        features["masked_lm_positions"] = tf.zeros([tf.size(text_a), 0], tf.int32)
        outputs = self.model(packing.with_token_places(features), training=False)
        return {"probabilities": tf.nn.softmax(outputs["next_sentence_logits"])}


class OfText:
    """A question about a text or a pair of texts [B], whose `answer` a subclass takes from the features."""

    def __init__(self, model: keras.Model, tokenizer, loss: str | None = "loss"):
        check(model, tokenizer, loss)
        self.model, self.tokenizer = model, tokenizer
        self.from_text = graph(self._from_text, TEXT)
        self.from_pairs = graph(self._from_pairs, TEXT, TEXT)
        self.from_ids = graph(self._from_ids, IDS, IDS, IDS)

    def __call__(self, texts, texts_b=None) -> dict:
        texts = tf.convert_to_tensor(texts, tf.string)
        return self.from_text(texts) if texts_b is None else self.from_pairs(texts, tf.convert_to_tensor(texts_b))

    def signatures(self) -> dict:
        return {"serving_default": self.from_text, "pairs": self.from_pairs, "ids": self.from_ids}

    def packers(self) -> dict:
        """By signature on text, the graph that packs it: texts, or pairs, -> features."""
        return {"serving_default": graph(self._packed_text, TEXT), "pairs": graph(self._packed_pairs, TEXT, TEXT)}

    def plain_row(self) -> PlainRow | None:
        """What packs a plain text, or two, as the packers do; None for a tokenizer that may find other pieces."""
        tokenizer = self.tokenizer
        if type(tokenizer) is not WordPiece:
            return None
        return PlainRow(tokenizer.vocabulary, tokenizer.lower_case, self.model.config.trained_length)

    def _packed_text(self, text):
        return packed(self, self.tokenizer(text))

    def _packed_pairs(self, text_a, text_b):
        text_a, text_b = as_many(text_a=text_a, text_b=text_b)
        return packed(self, self.tokenizer(text_a), self.tokenizer(text_b))

    def _from_text(self, text):
        return self.from_ids(**self._packed_text(text))

    def _from_pairs(self, text_a, text_b):
        return self.from_ids(**self._packed_pairs(text_a, text_b))

    def _from_ids(self, input_ids, input_mask, segment_ids):
        return self.answer(of_ids(input_ids, input_mask, segment_ids))


def names_of_classes(model: keras.Model, labels: list[str] | None) -> list[str]:
    """The labels, or numbers where there are none; raises ValueError for more or fewer than the model has."""
    names = labels or [str(number) for number in range(model.num_labels)]
    if len(names) != model.num_labels:
        raise ValueError(f"labels has {len(names)} names, expected the model's {model.num_labels}")
    return names


class Classify(OfText):
    """The class of a text or of a pair of texts: [B] -> `probabilities` float32 [B, K] and `label`, the likeliest, [B].

    `labels` are the names of the K classes; without them they are called "0", "1" and so on. Probabilities add up to 1,
    or are each class's own where the model is multi_label.
    """

    def __init__(self, model: keras.Model, tokenizer, labels: list[str] | None = None):
        super().__init__(model, tokenizer)
        self.labels = names_of_classes(model, labels)

    def answer(self, features):
        logits = self.model(features, training=False)["logits"]
        label = tf.gather(tf.constant(self.labels), tf.argmax(logits, axis=-1))
        probabilities = tf.sigmoid(logits) if self.model.multi_label else tf.nn.softmax(logits)
        return {"probabilities": probabilities, "label": label}


class Regress(OfText):
    """The number that a BertRegressor gives a text or a pair of texts: [B] -> `value` float32 [B]."""

    def answer(self, features):
        return {"value": self.model(features, training=False)["logits"]}


class Embed(OfText):
    """What a BertFeatures gives a text or a pair of texts: [B] -> `vectors` float32 [B, width] or as it has them.

    Beside the vectors of pieces, [B, S, width], are `pieces` string [B, S], "" after the end.
    """

    def __init__(self, model: keras.Model, tokenizer):
        super().__init__(model, tokenizer, loss=None)
        padding = {"pieces": ("pieces", ""), "vectors": ("pieces", None)}
        self.padding = {"serving_default": padding, "pairs": padding} if model.unit == "piece" else {}

    def answer(self, features):
        answer = {"vectors": self.model(features)}
        if self.model.unit != "piece":
            return answer
        return answer | {"pieces": pieces_of(self.tokenizer, features)}


class Attention:
    """Where each head of a layer looks: texts [B], layers int32 [B], 1 to L -> `pieces` and `attention`.

    `pieces` string [B, S], "" after the end; `attention` float32 [B, A, S, S], of each head the share of its attention
    that the piece of the third axis pays to that of the last, 0 after the end. A model that fills blanks reads [MASK]
    as one. Raises InvalidArgumentError for a layer that is not there.
    """

    padding = {"attention": {"pieces": ("pieces", ""), "attention": ("pieces", None)}}

    def __init__(self, model: keras.Model, tokenizer):
        check(model, tokenizer, loss=None)
        self.model, self.tokenizer = model, tokenizer
        self.from_text = graph(self._from_text, TEXT, tf.TensorSpec([None], tf.int32))

    def __call__(self, texts, layers) -> dict:
        return self.from_text(tf.convert_to_tensor(texts, tf.string), tf.convert_to_tensor(layers, tf.int32))

    def signatures(self) -> dict:
        return {"attention": self.from_text}

    def _from_text(self, text, layer):
        count = self.model.config.num_hidden_layers
        wrong = tf.boolean_mask(layer, (layer < 1) | (layer > count))
        message = tf.strings.format(f"layer is {{}}, expected 1 to {count}", wrong)
        [layer] = provided(tf.size(wrong) == 0, message, layer)
        has_masks = "masked_lm_loss" in self.model.loss_names
        tokens = pieces_and_masks(self.tokenizer, text) if has_masks else self.tokenizer(text)
        features = packed(self, tokens)
        shares = self.model.bert(packing.with_token_places(features), output_attentions=True)[
            "attention_probabilities"
        ]  # L of [B, A, S, S]
        found = shares[0]
        for number in range(2, count + 1):  # one after the other, as all of them at once are large
            found = tf.where((layer == number)[:, None, None, None], shares[number - 1], found)
        is_piece = features["input_mask"][:, None, :, None] > 0
        return {"pieces": pieces_of(self.tokenizer, features), "attention": tf.where(is_piece, found, 0.0)}


def pieces_and_masks(tokenizer, text):
    """The pieces of each text with mask_id for each literal [MASK], [B] -> [B, (pieces)]."""
    parts = tf.strings.split(text, MASK)  # [B, (parts)], one more than the text has masks
    masks = tf.fill([tf.size(parts.flat_values), 1], tokenizer.mask_id)
    tokens = parts.with_values(tf.concat([tokenizer(parts.flat_values), masks], axis=1))
    return tokens.merge_dims(1, 2)[:, :-1]  # nothing was masked after the last part


def pieces_of(tokenizer, features):
    """The names of the pieces, "" for padding, string [B, S]."""
    vocabulary = tf.constant([*tokenizer.vocabulary, ""])
    # The ids are chosen, not the names: LiteRT chooses among numbers alone.
    return tf.gather(vocabulary, tf.where(features["input_mask"] > 0, features["input_ids"], tokenizer.vocab_size))


def of_ids(input_ids, input_mask, segment_ids) -> dict:
    """The features of a batch, for whose padding next to nothing is computed."""
    features = {"input_ids": input_ids, "input_mask": input_mask, "segment_ids": segment_ids}
    return packing.with_token_places(features)


def graph(function, *inputs: tf.TensorSpec):
    return tf.function(function, input_signature=inputs, autograph=False)


def check(model, tokenizer, loss: str | None) -> None:
    if keras.backend.backend() != "tensorflow":
        raise ValueError(f"Keras's backend is {keras.backend.backend()}: SavedModels are made on tensorflow")
    if loss is not None and loss not in model.loss_names:
        raise ValueError(f"the model's losses are {', '.join(model.loss_names)}: it was not trained for {loss}")
    if tokenizer.vocab_size != model.config.vocab_size:
        raise ValueError(f"the vocabulary has {tokenizer.vocab_size} pieces, the model {model.config.vocab_size}")


def as_many(**inputs) -> list:
    """Both inputs; raises InvalidArgumentError, naming them, unless the second has as many rows as the first."""
    (first, one), (second, other) = ((name, tf.shape(values)[0]) for name, values in inputs.items())
    message = tf.strings.format(f"{first} has {{}} rows and {second} {{}}, expected as many", (one, other))
    return provided(one == other, message, *inputs.values())


def provided(is_so, message, *values) -> list:
    """The values; raises InvalidArgumentError with the message unless it is so.

    Who computes with what this returns waits for the check, and cannot fail first with a message of its own.
    """
    with tf.control_dependencies([tf.debugging.Assert(is_so, [message])]):
        return [tf.identity(value) for value in values]


def packed(question, tokens_a, tokens_b=None) -> dict:
    """[CLS] A [SEP] B [SEP], as long as the longest of the batch rounded up, at most as the model was trained on."""
    lengths = tokens_a.row_lengths() + 2 if tokens_b is None else tokens_a.row_lengths() + tokens_b.row_lengths() + 3
    longest = tf.cast(tf.reduce_max(tf.concat([lengths, [3]], 0)), tf.int32)
    sequence_length = rounded(longest, question.model.config.trained_length)
    return packing.pack(tokens_a, tokens_b, sequence_length, packing.special_ids(question.tokenizer))


def rounded(longest, limit: int):
    """A length that holds the longest sequence, at most the limit: int32."""
    steps = (tf.cast(longest, tf.int32) + LENGTH_STEP - 1) // LENGTH_STEP
    return tf.minimum(steps * LENGTH_STEP, limit)
