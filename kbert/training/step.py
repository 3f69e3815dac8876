"""The training and evaluation step that gives the same result on one replica and on several.

All in which kbert's training differs from Keras's own is here. The numbers are those of the traps it avoids: the loss
is divided by the weights of all replicas (2), gradients are summed before they are clipped (1), each replica draws its
own dropout masks (3), XLA compiles forward and backward inside the replica's step (4), several steps run in one call
(5), no batch is taken off the pipeline to build a model that is built (6, 7), and a batch may be taken in parts (8).
"""

import functools
import time

import keras
import tensorflow as tf

from kbert import lanes
from kbert.training import pieces
from kbert.training.distribution import SUM, loss_is_told, shared_out
from kbert.training.loss_scale import LossScale
from kbert.training.metrics import Mean, Sum
from kbert.training.optimization import global_norm

# Between the seeds of one generator's draws on two replicas. Seeds are Python's random integers, so that no two
# generators are likely to be a multiple of it apart.
SEED_STRIDE = 7_919_000_003


class TrainingStep:
    """Mixed in before keras.Model under the TensorFlow backend; `compile`, `fit` and `evaluate` are used as ever.

    The model has `loss_names`, `means`, `learned_variables`, `weights_of(features)` and `sums(features, outputs)`. An
    element of the dataset is one batch, a dict of numeric features; `data_position` (int64 [3]) in it is kept in the
    variable of that name.
    `means` and the metrics defined here cover the steps since the last `reset_metrics`.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.gradient_norm = Mean(name="gradient_norm")  # before clipping
        self.real_tokens = Sum(name="real_tokens", dtype="float64")
        self.token_slots = Sum(name="token_slots", dtype="float64")
        self.seconds = Sum(name="seconds", dtype="float64")
        self.seconds_waiting = Sum(name="seconds_waiting", dtype="float64")
        # Set between steps; agreed after the next one, in all processes after the same one.
        self.stop_asked = self.stop_agreed = False

    def compile(self, optimizer="rmsprop", jit_compile="auto", accumulation=1, **options):
        """Prepares `fit` and `evaluate` and builds the optimizer, so that a checkpoint can be restored.

        jit_compile True has XLA compile forward and backward as a whole, "pieces" what is between the products
        (pieces.py), and "auto" what is faster on this device: on a CPU the pieces, unless the Bert recomputes.
        It costs seconds once, so that with False, for short runs and batches of many lengths, XLA compiles the update
        and what dropout draws alone. With `accumulation` a replica takes its batch in so many parts, one after the
        other. Raises ValueError for a loss or metrics: the model brings its own.
        """
        if jit_compile not in ("auto", "pieces", True, False):
            raise ValueError(f"compile: jit_compile is {jit_compile!r}, expected 'auto', 'pieces', True or False")
        for name in ("loss", "metrics", "weighted_metrics"):
            if options.get(name) is not None:
                raise ValueError(f"compile: {name} is {options[name]!r}, expected none, as the model brings its own")
        super().compile(optimizer=optimizer, jit_compile=False, auto_scale_loss=False, **options)
        self._loss_tracker = None
        in_pieces = jit_compile == "pieces" or (jit_compile == "auto" and pieces.are_faster(self.bert))
        self.compiled_by_xla, self.accumulation = jit_compile is not False and not in_pieces, accumulation
        self.lanes = lanes.there_are() if self.distribute_strategy.num_replicas_in_sync == 1 else 1
        self.bert.piece = pieces.piece_of(in_pieces, self.compiled_by_xla)
        self.jit_compiled = jit_compile
        with self.distribute_strategy.scope():
            self.data_position = tf.Variable([0, 0, 0], dtype=tf.int64, trainable=False, name="data_position")
            self.loss_scale = LossScale() if self.bert.compute_dtype == "float16" else None
            if not self.optimizer.built:
                self.optimizer.build(self.learned_variables)
        # `apply` gets gradients that are reduced already; Keras would reduce them after clipping (TRAPS 1).
        self.optimizer._all_reduce_sum_gradients = list

    def get_compile_config(self):
        if not self.compiled:
            return None
        return {
            "optimizer": keras.saving.serialize_keras_object(self.optimizer),
            "jit_compile": self.jit_compiled,
            "accumulation": self.accumulation,
            "steps_per_execution": self.steps_per_execution,
            "run_eagerly": self.run_eagerly,
        }

    def compile_from_config(self, config):
        self.compile(**config | {"optimizer": keras.saving.deserialize_keras_object(config["optimizer"])})

    def run_variables(self) -> dict:
        """The variables of a run that are neither weights, nor the optimizer's, nor the metrics', by name."""
        return {"data_position": self.data_position, **(self.loss_scale.variables if self.loss_scale else {})}

    def fit(self, x=None, *args, steps_per_epoch=None, **options):
        if steps_per_epoch == 0:
            raise ValueError("steps_per_epoch is 0, expected at least 1: Keras would train to the end of the dataset")
        if steps_per_epoch and steps_per_epoch % self.steps_per_execution:
            raise ValueError(
                f"steps_per_epoch is {steps_per_epoch}, expected a multiple of steps_per_execution "
                f"{self.steps_per_execution}: Keras would train beyond it"
            )
        if options.get("validation_data") is not None and self.distribute_strategy.num_replicas_in_sync > 1:
            raise ValueError("validation_data: Keras would share it out anew; expected none on replicas, or Evaluate")
        x, steps_per_epoch = self._shared_out(x, steps_per_epoch)
        try:
            with loss_is_told(self.distribute_strategy):
                # Keras shuffles arrays, and warns that it cannot shuffle a dataset unless it is told not to.
                shuffle = isinstance(x, dict)
                return super().fit(x, *args, steps_per_epoch=steps_per_epoch, **{"shuffle": shuffle, **options})
        finally:
            # Keras tells callbacks nothing where an error ends it.
            for callback in options.get("callbacks") or []:
                getattr(callback, "on_fit_end", lambda: None)()

    def evaluate(self, x=None, *args, steps=None, **options):
        x, steps = self._shared_out(x, steps)
        with loss_is_told(self.distribute_strategy):
            return super().evaluate(x, *args, steps=steps, **options)

    def _shared_out(self, data, steps):
        """What each replica takes of a dataset of global batches, and how many there are."""
        if not isinstance(data, tf.data.Dataset) or self.distribute_strategy.num_replicas_in_sync == 1:
            return data, steps
        known = int(data.cardinality())
        return shared_out(data, self.distribute_strategy), steps or (known if known > 0 else None)

    @property
    def steps_done(self) -> int:
        return int(self.optimizer.iterations.numpy())

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        """Nothing: Keras would start the pipeline twice and eat a batch to build what is built (TRAPS 6, 7)."""

    def make_train_function(self, force=False):
        if self.train_function is None or force:
            gradients_of = self._graph(self._gradients, xla=self.compiled_by_xla)
            step = self._graph(functools.partial(self._train_step, gradients_of))

            def train_function(iterator):
                trace(step, iterator, tf.TensorSpec([], tf.float32))
                begin = time.perf_counter()
                stop = tf.constant(float(self.stop_asked))
                logs, waited = run_steps(lambda batch: step(batch, stop), iterator, self.steps_per_execution)
                # Numbers, not tensors: only when they are there has the time of the steps passed.
                logs = {name: float(value) for name, value in logs.items()}
                self.stop_agreed = logs.pop("stop") > 0
                self.seconds.update_state(time.perf_counter() - begin)
                self.seconds_waiting.update_state(waited)
                return logs

            self.train_function = train_function
        return self.train_function

    def make_test_function(self, force=False):
        if self.test_function is None or force:
            sums_of = self._graph(self._forward, xla=self.compiled_by_xla)
            step = self._graph(functools.partial(self._test_step, sums_of))

            def test_function(iterator):
                trace(step, iterator)
                return run_steps(step, iterator, self.steps_per_execution)[0]

            self.test_function = test_function
        return self.test_function

    def _graph(self, function, xla=False):
        if self.run_eagerly:
            return function
        return tf.function(function, autograph=False, jit_compile=xla, reduce_retracing=True)

    def _train_step(self, gradients_of, data, stop):
        """One update by one global batch, in cross-replica context, and what there is to say of it in the metrics."""
        features, position = unpack(data)
        if self.loss_scale:
            results = self._scaled_update(gradients_of, features, stop)
        else:
            results = self._run(functools.partial(self._update, gradients_of), features, stop)
        self._update_means(results["sums"])
        self.gradient_norm.update_state(results["norm"], sample_weight=results["applied"])
        self.real_tokens.update_state(results["real_tokens"])
        self.token_slots.update_state(results["token_slots"])
        if position is not None:
            self.data_position.assign(self.distribute_strategy.experimental_local_results(position)[-1])
        return self._logs() | {"gradient_norm": self.gradient_norm.result(), "stop": results["stop"]}

    def _test_step(self, sums_of, data):
        def score(features):
            sums = added(*(sums_of(one) for one in self._lanes_of(features)))
            return tf.distribute.get_replica_context().all_reduce(SUM, sums)

        self._update_means(self._run(score, unpack(data)[0]))
        return self._logs()

    def _run(self, function, *arguments):
        """The result of `function` in a replica, for functions whose results are the same in all."""
        strategy = self.distribute_strategy
        results = strategy.run(function, arguments)
        return tf.nest.map_structure(lambda value: strategy.experimental_local_results(value)[0], results)

    def _update(self, gradients_of, features, stop):
        """Forward, backward, reduce, clip, apply: one replica's part of an update."""
        gradients, results = self._reduced(gradients_of, features, stop)
        self.optimizer.apply(gradients, self.learned_variables)
        return results

    def _scaled_update(self, gradients_of, features, stop):
        """The same in float16: where a gradient overflowed, nothing moves but the loss scale and the count of steps."""
        strategy = self.distribute_strategy
        gradients, results = strategy.run(functools.partial(self._reduced, gradients_of), (features, stop))
        results = tf.nest.map_structure(lambda value: strategy.experimental_local_results(value)[0], results)
        norm, applied = self.loss_scale.update(
            results["norm"],
            apply=lambda: strategy.run(lambda g: self.optimizer.apply(g, self.learned_variables), (gradients,)),
            skip=lambda: self.optimizer.iterations.assign_add(1),
        )
        return results | {"norm": norm, "applied": applied}

    def _reduced(self, gradients_of, features, stop):
        """The gradients of the global batch, and what there is to say of it: one replica's part."""
        replica = tf.distribute.get_replica_context()
        weights = replica.all_reduce(SUM, self.weights_of(features))
        # The states are equal on all replicas: each draws from a seed of its own instead (TRAPS 3).
        states = self._seed_states()
        number = replica.replica_id_in_sync_group
        seeds = shifted([state.value for state in states], number)
        gradients, sums, seeds = self._accumulated(gradients_of, features, weights, seeds)
        for state, seed in zip(states, seeds, strict=True):
            state.assign(*shifted([seed], -number))

        mask = features["input_mask"]
        tokens = [tf.reduce_sum(tf.cast(mask, tf.float32)), tf.cast(tf.size(mask), tf.float32)]
        gradients = replica.all_reduce(SUM, gradients)
        # An identity, so that it is on the replica's own device, as what is reduced must be.
        sums, tokens, stop = replica.all_reduce(SUM, (sums, tokens, tf.identity(stop)))
        if self.loss_scale:
            gradients = [gradient / self.loss_scale.scale for gradient in gradients]
        results = {"sums": sums, "norm": global_norm(gradients), "applied": 1.0, "stop": stop}
        return gradients, results | {"real_tokens": tokens[0], "token_slots": tokens[1]}

    def _accumulated(self, gradients_of, features, weights, seeds):
        """`gradients_of` the batch, or its sum over parts of the batch, of which one at a time is in memory."""
        if self.accumulation == 1:
            return self._in_lanes(gradients_of, features, weights, seeds)
        rows = features["input_ids"].shape[0]
        if rows % self.accumulation:
            raise ValueError(
                f"a replica's batch has {rows} rows, expected a multiple of accumulation {self.accumulation}"
            )
        parts = parted(features, self.accumulation)

        def body(part, total, seeds):
            features = {name: value[part] for name, value in parts.items()}
            gradients, sums, seeds = self._in_lanes(gradients_of, features, weights, seeds)
            return part + 1, tf.nest.map_structure(tf.add, total, (gradients, sums)), seeds

        nothing = [tf.zeros(v.shape, v.dtype) for v in self.learned_variables], {name: (0.0, 0.0) for name in weights}
        _, total, seeds = tf.while_loop(
            lambda part, *_: part < self.accumulation, body, (0, nothing, seeds), parallel_iterations=1
        )
        return *total, seeds

    def _in_lanes(self, gradients_of, features, weights, seeds):
        """`gradients_of` the batch, or its sum over parts of the batch that are computed side by side."""
        found = [gradients_of(one, weights, shifted(seeds, lane)) for lane, one in enumerate(self._lanes_of(features))]
        return *added(*(one[:2] for one in found)), found[0][2]

    def _lanes_of(self, features) -> list[dict]:
        rows = features["input_ids"].shape[0]
        if self.lanes == 1 or rows is None or rows % self.lanes:
            return [features]
        parts = parted(features, self.lanes)
        return [{name: value[lane] for name, value in parts.items()} for lane in range(self.lanes)]

    def _gradients(self, features, weights, seeds):
        """Gradients, sums and the seeds after it; no variable is written, which XLA refuses on replicas (TRAPS 4)."""
        states = self._seed_states()
        with keras.StatelessScope(state_mapping=list(zip(states, seeds, strict=True))) as scope:
            with tf.GradientTape() as tape:
                sums = self.sums(features, self(features, training=True))
                # By the weights on all replicas: the gradients add up to those of the whole batch (TRAPS 2).
                loss = sum(tf.math.divide_no_nan(sums[name][0], weights[name]) for name in self.loss_names)
                loss = loss * self.loss_scale.scale if self.loss_scale else loss
        variables = self.learned_variables
        # Dense, as a reduction of IndexedSlices is slow or fails (TRAPS 12); of known shape where a batch has none.
        gradients = [tf.convert_to_tensor(gradient) for gradient in tape.gradient(loss, variables)]
        gradients = [tf.ensure_shape(g, variable.shape) for g, variable in zip(gradients, variables, strict=True)]
        return gradients, sums, [scope.get_current_value(state) for state in states]

    def _forward(self, features):
        return self.sums(features, self(features, training=False))

    def _seed_states(self):
        weights = {id(weight) for weight in self.weights}
        return [variable for variable in self.variables if id(variable) not in weights]

    def _update_means(self, sums):
        for name, (total, weight) in sums.items():
            self.means[name].update_state(tf.math.divide_no_nan(total, weight), sample_weight=weight)

    def _logs(self):
        means = {name: mean.result() for name, mean in self.means.items()}
        return {"loss": sum(means[name] for name in self.loss_names)} | means


def parted(features, parts: int):
    """Features of a batch of B, each [B, ...], as [parts, B / parts, ...]."""
    found = {}
    for name, value in features.items():  # of which a later dimension may be of any length
        shape = [parts, value.shape[0] // parts]
        found[name] = tf.reshape(value, tf.concat([shape, tf.shape(value)[1:]], 0))
        found[name].set_shape([*shape, *value.shape[1:]])
    return found


def added(*structures):
    return structures[0] if len(structures) == 1 else tf.nest.map_structure(lambda *some: tf.add_n(some), *structures)


def shifted(seeds, number):
    """The seeds of a replica, or of a lane, of this number."""
    shift = tf.stack([SEED_STRIDE * tf.cast(number, tf.int64), 0])
    return [seed + tf.cast(shift, seed.dtype) for seed in seeds]


def unpack(data):
    """A batch's features without its position in the corpus, and that position or None."""
    features = dict(keras.utils.unpack_x_y_sample_weight(data)[0])
    position = features.pop("data_position", None)
    return features, position


def trace(step, iterator, *specs) -> None:
    """Makes the graph of a step from what any batch may be, once.

    From its first batch it would be made for that length and again for any: a run that goes on in the middle would
    have other graphs, and other last bits.
    """
    if hasattr(step, "get_concrete_function") and step.experimental_get_tracing_count() == 0:
        step.get_concrete_function(iterator.element_spec, *specs)


def run_steps(step, iterator, steps):
    """Runs `step` on each of the next batches, at most `steps`; its last result and the seconds waited for batches.

    The loop is Python's: Keras's own in the graph fails on several replicas (TRAPS 5), and under op determinism no
    graph may read a clock. Raises StopIteration if there is no batch at all.
    """
    waited = 0.0
    for number in range(steps):
        begin = time.perf_counter()
        batch = next(iterator, None) if number else next(iterator)
        waited += time.perf_counter() - begin
        if batch is None:
            break
        result = step(batch)
    return result, waited


def is_due(model, every: int) -> bool:
    """Whether a multiple of `every` steps was reached or passed by the last call, of `steps_per_execution` steps."""
    return model.steps_done // every > (model.steps_done - model.steps_per_execution) // every
