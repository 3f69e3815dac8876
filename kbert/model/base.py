"""`Model` is what every trainable BERT derives from: a keras.Model whose losses are means over what was predicted."""

import keras
from keras import ops

# The one place where the TensorFlow step is mixed in, by the backend, as Keras itself chooses its trainer.
if keras.backend.backend() == "tensorflow":
    from kbert.training.step import TrainingStep as Step
else:

    class Step:
        """Nothing: on other backends Keras's own `fit` trains."""


class Model(Step, keras.Model):
    """A keras.Model whose losses and accuracies are means over what was predicted in a batch of features.

    A subclass has its Bert as `bert`, says in `reads_pooled_output` whether its heads read that, sets `loss_names`,
    whose means add up to the training loss, and `means`, a Mean for each loss and accuracy, and defines
    `weights_of` and `totals`. Totals are kept apart from weights so that a step can add up both over replicas before it
    divides (TRAPS 2). A mean over nothing is 0.
    """

    loss_names: tuple[str, ...]
    reads_pooled_output: bool

    @property
    def config(self):
        return self.bert.config

    @property
    def learned_variables(self) -> list:
        """The trainable variables that a loss depends on: all but the pooler's where no head reads it."""
        unread = self.bert.pooler.weights if self.config.pooler and not self.reads_pooled_output else []
        paths = {weight.path for weight in unread}
        return [variable for variable in self.trainable_variables if variable.path not in paths]

    def weights_of(self, features: dict) -> dict:
        """The sum of weights under each name of `means`, float32 scalars; needs no forward pass."""
        raise NotImplementedError

    def totals(self, features: dict, outputs: dict) -> dict:
        """The weighted sum under each name of `means`, float32 scalars."""
        raise NotImplementedError

    def sums(self, features: dict, outputs: dict) -> dict:
        """(weighted sum, sum of weights) under each name of `means`, float32 scalars."""
        weights = self.weights_of(features)
        return {name: (total, weights[name]) for name, total in self.totals(features, outputs).items()}

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        sums = self.sums(x, y_pred)
        return sum(ops.divide_no_nan(*sums[name]) for name in self.loss_names)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        for name, (total, weight) in self.sums(x, y_pred).items():
            self.means[name].update_state(ops.divide_no_nan(total, weight), sample_weight=weight)
        return self.get_metrics_result()
