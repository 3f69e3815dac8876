"""BERT's optimizers (the release's Adam, LAMB) and its learning-rate schedule, on any Keras backend.

Gradients are clipped once, by the norm of all of them, after they were reduced over replicas (TRAPS 1): `apply` clips,
then updates, and is given reduced gradients.
"""

import functools
import re
from typing import NamedTuple

import keras
from keras import ops


def global_norm(gradients):
    """The length of all gradients as one vector, a float32 scalar; None counts as zero."""
    halves = [half_square_sum(ops.cast(gradient, "float32")) for gradient in gradients if gradient is not None]
    # One op: TensorFlow's graph optimizer orders the terms of a chain of additions anew in each process.
    return ops.sqrt(2 * ops.sum(ops.stack(halves)))


def half_square_sum(x):
    if keras.backend.backend() != "tensorflow":
        return 0.5 * ops.sum(ops.square(x))
    import tensorflow as tf

    return tf.nn.l2_loss(x)  # in one kernel, which keeps no squares


def clip_by_global_norm(gradients, limit: float | None):
    """The gradients, scaled so that their global norm is at most `limit` (None: as they are), and the norm before.

    If the norm is not finite every gradient becomes NaN, so that the step that went wrong is seen.
    """
    gradients = dense(gradients)
    norm = global_norm(gradients)
    if limit is None:
        return gradients, norm
    scale = clipping_scale(norm, limit)
    return [None if gradient is None else gradient * ops.cast(scale, gradient.dtype) for gradient in gradients], norm


def dense(gradients) -> list:
    """TensorFlow's IndexedSlices, whose rows may repeat, made dense by a reshape."""
    return [ops.reshape(one, one.shape) if hasattr(one, "indices") else one for one in gradients]


def clipping_scale(norm, limit: float | None):
    if limit is None:
        return ops.ones_like(norm)
    return ops.where(ops.isfinite(norm), limit / ops.maximum(norm, limit), float("nan"))


def decays(variable) -> bool:
    """Whether weight decay applies: to matrices, not to vectors, which are the biases and LayerNorm's gamma and beta.

    The release tells them by name ("LayerNorm", "layer_norm", "bias"). Keras's exclusion by name sees only the last
    part of a path, and the same list would let gamma and beta decay (TRAPS 10).
    """
    return len(variable.shape) > 1


def depths(variables) -> list[int]:
    """How far each variable is below the output layer: 0 heads and pooler, 1 the last layer, L + 1 the embeddings.

    By their paths: .../encoder_layer_<number>/... and .../embeddings/...
    """
    found = [re.search(r"encoder_layer_(\d+)/", variable.path) for variable in variables]
    layers = max((int(layer[1]) for layer in found if layer), default=0)
    outside = [layers + 1 if "/embeddings/" in variable.path else 0 for variable in variables]
    return [layers + 1 - int(layer[1]) if layer else depth for layer, depth in zip(found, outside, strict=True)]


@keras.saving.register_keras_serializable(package="kbert")
class WarmupLinearDecay(keras.optimizers.schedules.LearningRateSchedule):
    """The paper's rate: from 0 up to `peak` in `warmup_steps`, then down to 0 at `steps`, in straight lines.

    The release's falls from peak * (1 - warmup_steps / steps) as soon as it is warm (create_optimizer in
    optimization.py): with a warm-up of a tenth it never reaches the peak that was asked for, and is a tenth lower all
    the way. Raises ValueError unless 0 <= warmup_steps <= steps.
    """

    def __init__(self, peak: float, steps: int, warmup_steps: int = 0):
        super().__init__()
        if steps < 1 or not 0 <= warmup_steps <= steps:
            raise ValueError(f"warmup_steps is {warmup_steps} and steps {steps}, expected 0 <= warmup_steps <= steps")
        self.peak, self.steps, self.warmup_steps = peak, steps, warmup_steps

    def __call__(self, step):
        step = ops.cast(step, "float32")
        rate = self.peak * ops.maximum((self.steps - step) / max(self.steps - self.warmup_steps, 1), 0.0)
        if self.warmup_steps == 0:
            return rate
        return ops.where(step < self.warmup_steps, self.peak * step / self.warmup_steps, rate)

    def get_config(self):
        return {"peak": self.peak, "steps": self.steps, "warmup_steps": self.warmup_steps}


@keras.saving.register_keras_serializable(package="kbert")
class BertAdam(keras.optimizers.Optimizer):
    """The release's Adam: decoupled weight decay of what `decays`, gradients clipped to a global norm.

    It has no bias correction unless asked for: the update at step t is (1 - beta_1^t) / sqrt(1 - beta_2^t) times as
    long as Adam's, 3.2 times at first. With it fine-tuning on small sets is steadier (Mosbach et al. 2021, arXiv
    2006.04884). With `layer_decay` below 1 each layer moves that much less than the one above it, the embeddings least.
    """

    def __init__(
        self,
        learning_rate=1e-4,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        weight_decay: float = 0.01,
        clip_norm: float | None = 1.0,
        bias_correction: bool = False,
        layer_decay: float = 1.0,
        name: str = "bert_adam",
    ):
        super().__init__(learning_rate=learning_rate, name=name)
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon
        # Not Keras's own `weight_decay` and `global_clipnorm`, which act apart from the update and before a reduction.
        self.weight_decay_rate = weight_decay
        self.clip_norm = clip_norm
        self.bias_correction = bias_correction
        self.layer_decay = layer_decay

    def build(self, variables):
        if not self.built:
            super().build(variables)
            self.first_moments = self.add_optimizer_variables(variables, "first_moment")
            self.second_moments = self.add_optimizer_variables(variables, "second_moment")
            self.rate_scales = [self.layer_decay**depth for depth in depths(variables)]

    @property
    def rule(self) -> "Rule":
        return Rule(self.beta_1, self.beta_2, self.epsilon, self.weight_decay_rate, self.bias_correction)

    def apply(self, grads, trainable_variables=None):
        """Clips reduced gradients and updates the variables."""
        if is_alone_on_tensorflow():
            grads = dense(grads)
            self.scale = clipping_scale(global_norm(grads), self.clip_norm)
        else:
            grads = clip_by_global_norm(grads, self.clip_norm)[0]
        super().apply(grads, trainable_variables)
        self.scale = None

    def update_step(self, gradient, variable, learning_rate):
        gradient = ops.cast(gradient, variable.dtype)
        index = self._get_variable_index(variable)
        rate = ops.cast(learning_rate, variable.dtype) * self.rate_scales[index]
        written = variable, self.first_moments[index], self.second_moments[index]
        moving = gradient, rate, self.iterations + 1
        if keras.backend.backend() != "tensorflow":
            values = self.rule.moved(*written, *moving)
        elif is_alone_on_tensorflow():
            return move_in_place(self.rule, map(own_variable, written), ops.cast(self.scale, variable.dtype), moving)
        else:
            values = compiled(self.rule)(*map(own_value, written), *moving)
        for one, value in zip(written, values, strict=True):
            self.assign(one, value)

    def get_config(self):
        return {
            "name": self.name,
            "learning_rate": super().get_config()["learning_rate"],
            "beta_1": self.beta_1,
            "beta_2": self.beta_2,
            "epsilon": self.epsilon,
            "weight_decay": self.weight_decay_rate,
            "clip_norm": self.clip_norm,
            "bias_correction": self.bias_correction,
            "layer_decay": self.layer_decay,
        }


@keras.saving.register_keras_serializable(package="kbert")
class LAMB(BertAdam):
    """LAMB as published (You et al. 2020, arXiv 1904.00962, algorithm 2): Adam with bias correction, each update
    scaled to the length of its variable, weight decay included; vectors are neither decayed nor scaled, as in the
    authors' code.
    """

    def __init__(self, learning_rate=1e-3, bias_correction: bool = True, name: str = "lamb", **options):
        super().__init__(learning_rate, bias_correction=bias_correction, name=name, **options)

    @property
    def rule(self):
        return super().rule._replace(by_length=True)


class Rule(NamedTuple):
    """How a variable moves; by_length: as far as LAMB has it."""

    beta_1: float
    beta_2: float
    epsilon: float
    weight_decay: float
    bias_correction: bool
    by_length: bool = False

    def moved(self, variable, m, v, gradient, rate, step):
        """The new values of a variable and its moments by the update of this number, from 1."""
        m = self.beta_1 * m + (1 - self.beta_1) * gradient
        v = self.beta_2 * v + (1 - self.beta_2) * ops.square(gradient)
        corrected = m, v
        if self.bias_correction:  # for what they lack since they started at zero
            step = ops.cast(step, gradient.dtype)
            corrected = m / (1 - self.beta_1**step), v / (1 - self.beta_2**step)
        update = corrected[0] / (ops.sqrt(corrected[1]) + self.epsilon)
        if decays(variable):
            update = update + self.weight_decay * variable
            update = self.of_length(update, variable) if self.by_length else update
        return variable - rate * update, m, v

    def of_length(self, update, variable):
        length, update_length = (ops.sqrt(ops.sum(ops.square(vector))) for vector in (variable, update))
        usable = ops.logical_and(length > 0, update_length > 0)
        return ops.where(usable, length / ops.where(usable, update_length, 1.0), 1.0) * update


def is_alone_on_tensorflow() -> bool:
    """Whether no other replica has these variables: XLA refuses to write those that several have (TRAPS 4)."""
    if keras.backend.backend() != "tensorflow":
        return False
    import tensorflow as tf

    return tf.distribute.get_strategy().num_replicas_in_sync == 1


def own_value(variable):
    """That of the replica at hand; within an update a variable is given as TensorFlow's own already."""
    import tensorflow as tf

    return tf.convert_to_tensor(variable.value if isinstance(variable, keras.Variable) else variable)


def own_variable(variable):
    """TensorFlow's own of the one replica."""
    import tensorflow as tf

    variable = variable.value if isinstance(variable, keras.Variable) else variable
    return tf.distribute.get_strategy().experimental_local_results(variable)[0]


# Functions for all optimizers of a process, as XLA compiles each once for a shape.
@functools.cache
def compiled(rule: Rule):
    """`rule.moved`, each array read and written once but where lengths are needed: half the time."""
    import tensorflow as tf

    return tf.function(rule.moved, autograph=False, jit_compile=True)


def move_in_place(rule: Rule, written, scale, moving) -> None:
    """Moves a variable and its moments where they are; values of theirs that somebody holds stay as they are."""
    variable, m, v = written
    # Handles, as a function that is given variables keeps the first ones that it was given.
    _move_in_place(rule)(variable.handle, m.handle, v.handle, scale, *moving)


@functools.cache
def _move_in_place(rule: Rule):
    import tensorflow as tf

    @functools.partial(tf.function, autograph=False, jit_compile=True)
    def move(variable, m, v, scale, gradient, *how):
        handles = variable, m, v
        values = [tf.raw_ops.ReadVariableOp(resource=handle, dtype=gradient.dtype) for handle in handles]
        values = [tf.ensure_shape(value, gradient.shape) for value in values]
        for handle, value in zip(handles, rule.moved(*values, gradient * scale, *how), strict=True):
            tf.raw_ops.AssignVariableOp(resource=handle, value=value)

    return move
