"""The encoder: embeddings, self-attention, the Transformer layer, and the stack of them (section 3 of the paper).

Shapes: B batch, S sequence length, H hidden size, A heads, D head size, L layers, P positions, N sequences in a row,
T tokens of a batch that are not padding.
"""

import contextlib

import keras
from keras import ops

from kbert.config import BertConfig
from kbert.model.between import ACTIVATIONS, affine, attention_weights, directly, masked_softmax, normed_sum
from kbert.model.dropout import Dropout, dropped
from kbert.model.kernels import Kernels
from kbert.model.tokens import Rows, Tokens

gpu = None
if keras.backend.backend() == "jax":
    with contextlib.suppress(ImportError):  # of a JAX that does not have what it needs
        from kbert.model.gpu import layer as gpu


def new_initializer(config: BertConfig) -> keras.initializers.Initializer:
    """The release's truncated normal; one object per weight, as two weights that share one start equal (TRAPS 13)."""
    return keras.initializers.TruncatedNormal(stddev=config.initializer_range)


def new_dense(config: BertConfig, inputs: int, units: int, **options) -> keras.layers.Dense:
    """A built Dense layer, [..., inputs] -> [..., units]."""
    dense = keras.layers.Dense(units, kernel_initializer=new_initializer(config), **options)
    dense.build((None, inputs))
    return dense


def product(dense: keras.layers.Dense, x, piece):  # [T, inputs] -> [T, units], by a layer without an activation
    with keras.name_scope(dense.name, caller=dense):  # without which TensorFlow does not see the GELU after one
        return piece(affine, (x, *(ops.convert_to_tensor(one) for one in (dense.kernel, dense.bias))))


def new_layer_norm(config: BertConfig, **options) -> keras.layers.LayerNormalization:
    """A built LayerNorm over the hidden size."""
    layer_norm = keras.layers.LayerNormalization(epsilon=config.layer_norm_epsilon, **options)
    layer_norm.build((None, config.hidden_size))
    return layer_norm


def gather_positions(x, positions):
    """The vectors of each sequence at its positions, [B, S, H], [B, P] -> [B, P, H]."""
    batch, length, hidden = ops.shape(x)
    rows = positions + ops.arange(batch, dtype=positions.dtype)[:, None] * length
    return ops.take(ops.reshape(x, (batch * length, hidden)), rows, axis=0)


class Embeddings(keras.layers.Layer):
    """LayerNorm(token + segment + position embedding), then dropout."""

    def __init__(self, config: BertConfig, **options):
        super().__init__(**options)
        self.config = config
        with keras.name_scope(self.name, caller=self):
            self.token_embeddings = self.table("token_embeddings", config.vocab_size)
            self.segment_embeddings = self.table("segment_embeddings", config.type_vocab_size)
            self.position_embeddings = self.table("position_embeddings", config.max_position_embeddings)
            self.layer_norm = new_layer_norm(config, name="layer_norm", dtype=self.dtype_policy)
            self.dropout = Dropout(config.hidden_dropout_prob, name="dropout", dtype=self.dtype_policy)
        self.built = True

    def table(self, name, rows):
        return self.add_weight((rows, self.config.hidden_size), initializer=new_initializer(self.config), name=name)

    def call(self, input_ids, segment_ids, position_ids=None, training=False, piece=directly):
        """3 x [B, S] -> [B, S, H], or [T] -> [T, H]."""
        tokens = ops.take(self.token_embeddings, input_ids, axis=0)
        if gpu and gpu.is_there():
            segments = gpu.rows_of_few(ops.convert_to_tensor(self.segment_embeddings), segment_ids)
        else:
            segments = ops.take(self.segment_embeddings, segment_ids, axis=0)
        if position_ids is None:
            positions = self.first_positions(input_ids)
        else:
            positions = ops.take(self.position_embeddings, position_ids, axis=0)
        gamma, beta = (ops.convert_to_tensor(one) for one in (self.layer_norm.gamma, self.layer_norm.beta))
        sums = (tokens, segments + positions, gamma, beta)
        normed = piece(normed_sum, sums, (None,), rate=0.0, epsilon=self.layer_norm.epsilon)
        return piece(dropped, (normed,), (self.dropout.next_seed(training),), rate=self.dropout.rate)

    def first_positions(self, input_ids):  # [B, S] -> [S, H]
        self.check_length(input_ids)
        return self.position_embeddings[: ops.shape(input_ids)[1]]

    def check_length(self, input_ids):
        length, limit = input_ids.shape[1], self.config.max_position_embeddings
        if length is not None and length > limit:
            raise ValueError(
                f"input_ids has sequences of {length} tokens, expected at most max_position_embeddings {limit}"
            )


class SelfAttention(keras.layers.Layer):
    """softmax(Q K^T / sqrt(D) + mask) V in A heads, then the output projection."""

    def __init__(self, config: BertConfig, **options):
        super().__init__(**options)
        self.config = config
        hidden, policy = config.hidden_size, {"dtype": self.dtype_policy}
        with keras.name_scope(self.name, caller=self):
            self.query = new_dense(config, hidden, hidden, name="query", **policy)
            self.key = new_dense(config, hidden, hidden, name="key", **policy)
            self.value = new_dense(config, hidden, hidden, name="value", **policy)
            self.projection = new_dense(config, hidden, hidden, name="projection", **policy)
            self.dropout = Dropout(config.attention_probs_dropout_prob, name="dropout", **policy)
        # The queries' kernel is divided rather than the scores, as it is smaller.
        self.kernels = Kernels({"query": config.head_size**-0.5})
        self.built = True

    def call(self, x, mask, asking=None, *, tokens, askers=None, training, seed=None, piece=directly, probabilities):
        """The vectors of `tokens`, x [T, H], look at each other where mask [B, 1, 1 or N, S] lets them.

        asking: what looks at x instead, the vectors [B * N, H] of the Rows `askers`. Returns the shape of what looks,
        and on request the probabilities [B, A, N, S].
        """
        if asking is None:
            askers = tokens
            query, key, value = self.heads(x, tokens, piece, self.query, self.key, self.value)
        else:
            (query,) = self.heads(asking, askers, piece, self.query)
            key, value = self.heads(x, tokens, piece, self.key, self.value)
        scores = ops.matmul(query, ops.swapaxes(key, -1, -2))
        seed = self.dropout.next_seed(training, seed)
        weights = piece(attention_weights, (scores,), (mask, seed), rate=self.dropout.rate)
        context = askers.joined(ops.matmul(weights, value))
        return product(self.projection, context, piece), masked_softmax(scores, mask) if probabilities else None

    def heads(self, x, tokens, piece, *layers):  # [T, H] -> [B, A, S, D] of each layer
        return tokens.in_heads(piece(affine, (x, *self.kernels.of(*layers))), len(layers))


class EncoderLayer(keras.layers.Layer):
    """One Transformer layer: self-attention and a feed-forward network, each in a residual sum, LayerNorm after it."""

    def __init__(self, config: BertConfig, **options):
        super().__init__(**options)
        hidden, feed_forward, policy = config.hidden_size, config.intermediate_size, {"dtype": self.dtype_policy}
        with keras.name_scope(self.name, caller=self):
            self.self_attention = SelfAttention(config, name="self_attention", **policy)
            self.attention_norm = new_layer_norm(config, name="attention_norm", **policy)
            self.intermediate = new_dense(config, hidden, feed_forward, name="intermediate", **policy)
            self.activation = ACTIVATIONS[config.hidden_act]
            self.projection = new_dense(config, feed_forward, hidden, name="projection", **policy)
            self.feed_forward_norm = new_layer_norm(config, name="feed_forward_norm", **policy)
            self.dropout = Dropout(config.hidden_dropout_prob, name="dropout", **policy)
        self.built = True

    def call(
        self,
        x,
        mask,
        asking=None,
        *,
        tokens,
        askers=None,
        training=False,
        seeds=(None, None, None),
        piece=directly,
        probabilities=False,
    ):
        """x [T, H], the vectors of `tokens`, or, if given, those `asking` [B * N, H], of `askers`, that look at x.

        Returns the same shape and, on request, the probabilities [B, A, S or N, S].
        """
        if gpu and asking is None and not probabilities and gpu.can_compute(x, tokens):
            dropouts = zip(self.dropouts, seeds, strict=True)
            return gpu.layer(self, x, mask, [dropout.next_seed(training, seed) for dropout, seed in dropouts]), None
        how = {"tokens": tokens, "askers": askers, "training": training, "seed": seeds[0], "piece": piece}
        attended, found = self.self_attention(x, mask, asking, probabilities=probabilities, **how)
        x = x if asking is None else asking
        x = self.residual(x, attended, self.attention_norm, training, seeds[1], piece)
        x = self.residual(x, self.feed_forward(x, piece), self.feed_forward_norm, training, seeds[2], piece)
        return x, found

    @property
    def dropouts(self):
        """In the order in which they draw."""
        return self.self_attention.dropout, self.dropout, self.dropout

    def recomputed(self, x, mask, tokens):
        """The output in training, of which only x is kept for the gradient: all within is computed once more for it."""
        seeds = [dropout.seed_generator.next() for dropout in self.dropouts]  # the same masks both times
        return keras.remat(lambda x: self(x, mask, tokens=tokens, training=True, seeds=seeds)[0])(x)

    def residual(self, x, change, norm, training, seed, piece):
        seed = self.dropout.next_seed(training, seed)
        gamma, beta = ops.convert_to_tensor(norm.gamma), ops.convert_to_tensor(norm.beta)
        return piece(normed_sum, (x, change, gamma, beta), (seed,), rate=self.dropout.rate, epsilon=norm.epsilon)

    def feed_forward(self, x, piece=directly):  # [T, H] -> [T, H]
        x = piece(self.activation, (product(self.intermediate, x, piece),))
        return product(self.projection, x, piece)


@keras.saving.register_keras_serializable(package="kbert")
class Bert(keras.layers.Layer):
    """The encoder of the paper: a batch of features to the final hidden vectors and the pooled [CLS] vector.

    Called with a dict of `input_ids`, `input_mask`, `segment_ids` [B, S] and, for rows that pack several sequences,
    `position_ids`, `sequence_ids` [B, S] (attention stays inside equal sequence ids) and `cls_positions` [B, N]. With
    `token_places` [T], where in [B * S] the tokens are, attention alone computes anything for padding, whose vectors
    then are those of other tokens. Other features are ignored.
    Returns a dict: `sequence_output` [B, S, H]; `pooled_output` [B, H], or [B, N, H] with `cls_positions`, if the
    config has a pooler, which reads each sequence's [CLS], or its last token where the config is causal; on request
    `all_layer_outputs`, L + 1 of [B, S, H] that begin with the embedding output, and `attention_probabilities`, L of
    [B, A, S, S] in float32, before dropout. With `pooled_only` `pooled_output` alone, with `positions` [B, P] that and
    `position_output` [B, P, H], the final vectors there, for less: the last layer is computed for what is read of it.
    With `recompute` set, training keeps the outputs of the layers alone and computes the rest again for the gradient.
    `piece` is how training computes what is between two products.
    Raises ValueError for sequences longer than the config's max_position_embeddings.
    """

    def __init__(self, config: BertConfig, name: str = "bert", **options):
        super().__init__(name=name, **options)
        self.config, self.recompute, self.piece = config, False, directly
        hidden, policy = config.hidden_size, {"dtype": self.dtype_policy}
        with keras.name_scope(self.name, caller=self):
            self.embeddings = Embeddings(config, name="embeddings", **policy)
            self.encoder_layers = [
                EncoderLayer(config, name=f"encoder_layer_{number}", **policy)
                for number in range(1, config.num_hidden_layers + 1)
            ]
            if config.pooler:
                self.pooler = new_dense(config, hidden, hidden, activation="tanh", name="pooler", **policy)
        self.built = True

    def call(
        self,
        features,
        training=False,
        pooled_only=False,
        positions=None,
        output_all_layers=False,
        output_attentions=False,
    ):
        mask = self.attention_mask(features)
        tokens = self.tokens(features)
        layer_outputs, attentions = [self.embedded(features, tokens, training)], []
        in_part = pooled_only or positions is not None
        for layer in self.encoder_layers[:-1] if in_part else self.encoder_layers:
            if self.recompute and training and not output_attentions:
                layer_outputs.append(layer.recomputed(layer_outputs[-1], mask, tokens))
                continue
            how = {"tokens": tokens, "training": training, "probabilities": output_attentions}
            how["piece"] = self.piece_in(training)
            x, probabilities = layer(layer_outputs[-1], mask, **how)
            layer_outputs.append(x)
            attentions.append(probabilities)
        if in_part:
            return self.read_in_part(layer_outputs[-1], mask, tokens, features, positions, training)
        layer_outputs = [tokens.laid_out(x) for x in (layer_outputs if output_all_layers else layer_outputs[-1:])]
        outputs = {"sequence_output": layer_outputs[-1]}
        if self.config.pooler:
            pooled = gather_positions(layer_outputs[-1], self.pooled_positions(features))
            outputs["pooled_output"] = self.pooled(pooled, features)
        if output_all_layers:
            outputs["all_layer_outputs"] = layer_outputs
        if output_attentions:
            outputs["attention_probabilities"] = attentions
        return outputs

    def read_in_part(self, x, mask, tokens, features, positions, training):
        """The outputs at `positions` [B, P] or None, and the pooled one; x [T, H] is the last layer's input."""
        pooled = [self.pooled_positions(features)] if self.config.pooler else []
        places = ops.concatenate(pooled if positions is None else [*pooled, positions], axis=1)  # [B, N]
        asking = gather_positions(tokens.laid_out(x), places)
        askers = Rows(*ops.shape(asking)[:2], self.config.num_attention_heads)
        mask = mask if mask.shape[2] == 1 else gather_positions(mask[:, 0], places)[:, None]  # [B, 1, 1 or N, S]
        asking = ops.reshape(asking, (-1, self.config.hidden_size))
        how = {"tokens": tokens, "askers": askers, "training": training, "piece": self.piece_in(training)}
        found = askers.laid_out(self.encoder_layers[-1](x, mask, asking, **how)[0])
        count = ops.shape(pooled[0])[1] if pooled else 0
        outputs = {} if positions is None else {"position_output": found[:, count:]}
        return outputs | ({"pooled_output": self.pooled(found[:, :count], features)} if pooled else {})

    def piece_in(self, training):
        return self.piece if training else directly

    def tokens(self, features):
        if "token_places" in features:
            return Tokens(features["token_places"], features["input_mask"], self.config.num_attention_heads)
        return Rows(*ops.shape(features["input_mask"]), self.config.num_attention_heads)

    def embedded(self, features, tokens, training):  # [T, H]
        ids = [features["input_ids"], features["segment_ids"], features.get("position_ids")]
        if "token_places" in features:
            if ids[2] is None:
                self.embeddings.check_length(ids[0])
                columns = ops.arange(ops.shape(ids[0])[1], dtype=ids[0].dtype)
                ids[2] = ops.broadcast_to(columns, ops.shape(ids[0]))
            return self.embeddings(*map(tokens.taken, ids), training=training, piece=self.piece_in(training))
        vectors = self.embeddings(*ids, training=training, piece=self.piece_in(training))
        return ops.reshape(vectors, (-1, self.config.hidden_size))

    def pooled_positions(self, features):
        """Where the pooler reads, [B, N]; N is 1 by default.

        At each sequence's [CLS]; where that sees nothing but itself, at the last token, which sees all.
        """
        starts = features.get("cls_positions")
        mask = ops.cast(features["input_mask"], "int32")
        if not self.config.causal:
            return ops.zeros_like(mask[:, :1]) if starts is None else starts
        if starts is None:
            return ops.maximum(ops.sum(mask, axis=1, keepdims=True) - 1, 0)
        ids = features["sequence_ids"]
        own = ids[:, None, :] == ops.take_along_axis(ids, starts, axis=1)[:, :, None]  # [B, N, S]
        lengths = ops.sum(ops.cast(own, "int32") * mask[:, None, :], axis=2)
        return starts + ops.maximum(lengths - 1, 0)

    def pooled(self, vectors, features):  # [B, N, H] -> [B, H] or [B, N, H]
        return self.pooler(vectors if "cls_positions" in features else vectors[:, 0])

    def attention_mask(self, features):
        """What is added to attention scores, 0 where a token may look and -10000 where not, [B, 1, 1 or S, S]."""
        allowed = ops.cast(features["input_mask"], "bool")[:, None, None, :]
        if "sequence_ids" in features:
            ids = features["sequence_ids"]
            allowed = ops.logical_and(allowed, ids[:, None, :, None] == ids[:, None, None, :])
        if self.config.causal:
            order = ops.arange(ops.shape(features["input_mask"])[1])
            allowed = ops.logical_and(allowed, order[:, None] >= order[None, :])
        return ops.where(allowed, 0.0, -10000.0)

    def get_config(self):
        return {**super().get_config(), "config": self.config.to_dict()}

    @classmethod
    def from_config(cls, config):
        return cls(**{**config, "config": BertConfig(**config["config"])})
