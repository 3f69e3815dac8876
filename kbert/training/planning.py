"""What a pre-training takes, counted from shapes: parameters, operations, memory, time.

For one device and the step of step.py, compiled by XLA, with the masked LM and next sentence prediction. Nothing is
computed here but sums. What shapes cannot tell, how fast the device is and how much memory the compiled program itself
takes, comes from measurement.py: short runs of the same step with one and a few layers and with small batches.

Shapes: B batch, S sequence length, H hidden size, F feed-forward size, A heads.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import NamedTuple

from kbert.config import BertConfig

MEGABYTE = 10**6
PRECISIONS = ("float32", "bfloat16", "float16")
SLOTS = 2  # for each variable, Adam's and LAMB's moments
IN_UPDATE = {"adam": 0, "lamb": 3}  # arrays of the largest variable's size that an update holds at once
# Adding a part's gradients to the sum reads two arrays and writes one; the norm and the update read five and write
# three.
ADDING_PER_UPDATE = 3 / 8
# Bytes of a step with recomputation, which is compiled whole, and of what is left of compiling it, for each layer: 76
# MB between 1 and 12 layers. Trials of few layers would tell it only roughly.
COMPILED_LAYER = 75 * MEGABYTE
SHORTEST = 8  # [CLS] and two [SEP] leave five


class Product(NamedTuple):
    """`times` in a step `batch` products of matrices, [m, k] x [k, n] -> [m, n] each."""

    name: str
    times: int
    batch: int
    m: int
    n: int
    k: int

    @property
    def operations(self) -> int:
        """Additions and multiplications."""
        return 2 * self.times * self.batch * self.m * self.n * self.k

    @property
    def backward(self) -> tuple["Product", "Product"]:
        """Those that give the gradients of the left and of the right factor."""
        return self._replace(n=self.k, k=self.n), self._replace(m=self.k, n=self.n, k=self.m)


@dataclass(frozen=True)
class Setting:
    """A step of pre-training, whose batch is all sequences of an update. Raises ValueError for one that cannot be."""

    config: BertConfig
    batch_size: int
    sequence_length: int
    predictions: int
    optimizer: str = "adam"
    accumulation: int = 1
    precision: str = "float32"
    recompute: bool = False
    lanes: int = 1  # as lanes.py counts them

    def __post_init__(self):
        positions = self.config.max_position_embeddings
        if not SHORTEST <= self.sequence_length <= positions:
            expected = f"{SHORTEST} to {positions}, the model's positions"
            raise ValueError(f"sequence_length is {self.sequence_length}, expected {expected}")
        if not 1 <= self.predictions <= self.sequence_length:
            raise ValueError(f"predictions is {self.predictions}, expected 1 to {self.sequence_length}, the sequence's")
        if self.accumulation < 1 or self.batch_size < 1 or self.batch_size % self.accumulation:
            raise ValueError(
                f"batch_size is {self.batch_size}, expected a multiple, at least 1, of accumulation {self.accumulation}"
            )
        for name, value, known in (("optimizer", self.optimizer, IN_UPDATE), ("precision", self.precision, PRECISIONS)):
            if value not in known:
                raise ValueError(f"{name} is {value!r}, expected one of {', '.join(known)}")
        if not self.config.pooler:
            raise ValueError("config.pooler is False, expected a config with a pooler, for next sentence prediction")

    @property
    def in_part(self) -> int:
        """Sequences that are computed at once."""
        return self.batch_size // self.accumulation


def parameters(config: BertConfig) -> dict[str, int]:
    """The trained numbers of a BertPretrainer, by part."""
    hidden, feed_forward = config.hidden_size, config.intermediate_size
    rows = config.vocab_size + config.type_vocab_size + config.max_position_embeddings
    norm, square = 2 * hidden, (hidden + 1) * hidden
    layer = 4 * square + 2 * norm + (hidden + 1) * feed_forward + (feed_forward + 1) * hidden
    return {
        "embeddings": rows * hidden + norm,
        "encoder layers": config.num_hidden_layers * layer,
        "pooler": square if config.pooler else 0,
        "masked LM": square + norm + config.vocab_size,
        "next sentence": (hidden + 1) * 2,
    }


def layer_products(config: BertConfig, layers: int, batch_size: int, length: int, asking: int) -> list[Product]:
    """The matrix products of a forward pass through so many layers, in which `asking` of a row's vectors are computed.

    Those ask in attention; keys and values are of all.
    """
    hidden, feed_forward, heads = config.hidden_size, config.intermediate_size, batch_size * config.num_attention_heads
    tokens = batch_size * asking
    inputs = [Product("queries, keys, values", layers, 1, tokens, 3 * hidden, hidden)]
    if asking < length:
        inputs = [
            Product("queries", layers, 1, tokens, hidden, hidden),
            Product("keys, values", layers, 1, batch_size * length, 2 * hidden, hidden),
        ]
    return inputs + [
        Product("attention scores", layers, heads, asking, length, config.head_size),
        Product("attended values", layers, heads, asking, config.head_size, length),
        Product("attention projection", layers, 1, tokens, hidden, hidden),
        Product("feed-forward, inner", layers, 1, tokens, feed_forward, hidden),
        Product("feed-forward, outer", layers, 1, tokens, hidden, feed_forward),
    ]


def whole_layers(config: BertConfig, sequence_length: int, read: int) -> int:
    """The layers that are computed for all vectors where `read` of them are read in the end: all, or all but one."""
    return config.num_hidden_layers - (read < sequence_length)


def encoder_products(config: BertConfig, batch_size: int, length: int, read: int) -> list[Product]:
    """The matrix products of a forward pass through layers and pooler; of the last `read` vectors of a row are read."""
    whole = whole_layers(config, length, read)
    found = layer_products(config, whole, batch_size, length, length) if whole else []
    for product in layer_products(config, 1, batch_size, length, read) if whole < config.num_hidden_layers else []:
        found.append(product._replace(name=f"last layer, {product.name}"))
    pooler = Product("pooler", 1, 1, batch_size, config.hidden_size, config.hidden_size)
    return [*found, pooler] if config.pooler else found


def products(config: BertConfig, batch_size: int, sequence_length: int, predictions: int) -> list[Product]:
    """The matrix products of a forward pass of pre-training."""
    hidden, predicted = config.hidden_size, batch_size * predictions
    return encoder_products(config, batch_size, sequence_length, vectors_read(sequence_length, predictions)) + [
        Product("masked LM, hidden", 1, 1, predicted, hidden, hidden),
        Product("masked LM, logits", 1, 1, predicted, config.vocab_size, hidden),
        Product("next sentence", 1, 1, batch_size, 2, hidden),
    ]


def vectors_read(sequence_length: int, predictions: int) -> int:
    """The vectors of a row that pre-training reads: those of the predictions and [CLS]'s."""
    return min(predictions + 1, sequence_length)


def operations(setting: Setting) -> dict[str, tuple[int, int]]:
    """Forward and backward operations of a step, by product; recomputation counts as backward."""
    config, batch_size, length = setting.config, setting.batch_size, setting.sequence_length
    counted = {
        product.name: (product.operations, sum(one.operations for one in product.backward))
        for product in products(config, batch_size, length, setting.predictions)
    }
    whole = whole_layers(config, length, vectors_read(length, setting.predictions))
    for product in layer_products(config, whole, batch_size, length, length) if setting.recompute and whole else []:
        forward, backward = counted[product.name]
        counted[product.name] = forward, backward + product.operations
    return counted


def faster_in_pieces(recompute: bool, on_gpu: bool) -> bool:
    """Whether a step is, compiled in pieces (pieces.py) rather than whole: on CPUs, where it is not computed twice."""
    return not recompute and not on_gpu


class Device(NamedTuple):
    """What shapes do not tell of memory: bytes of the process after its imports, and of a compiled step without layers.

    on_gpu: the bytes are the GPU's, where compiled code takes none. The defaults were measured on Linux with two cores.
    """

    libraries: int = 780 * MEGABYTE
    compiled: int = 320 * MEGABYTE
    on_gpu: bool = False

    def lanes(self, setting: Setting) -> int:
        return setting.lanes if faster_in_pieces(setting.recompute, self.on_gpu) else 1

    def item(self, setting: Setting) -> int:
        """Bytes of a number between two products: with recomputation, where XLA for CPUs has all, always float32's."""
        in_half = setting.precision != "float32" and (self.on_gpu or not setting.recompute)
        return 2 if in_half else 4


def memory(setting: Setting, device: Device) -> dict[str, int]:
    """Bytes of the process at its fullest, by kind.

    What a step takes stays with the process between steps, so that the kinds add up. Counted from the buffers
    of XLA's own report for CPUs (--xla_dump_to) and from what larger models, batches and vocabularies added to a
    process.
    """
    config, variables = setting.config, 4 * sum(parameters(setting.config).values())
    embeddings = 4 * config.vocab_size * config.hidden_size  # of tokens, the largest variable
    # With recomputation XLA for CPUs has one array of them, as its report says; else only pieces were looked at.
    arrays = 1 if setting.recompute else 3
    logits = arrays * 4 * setting.in_part * setting.predictions * config.vocab_size
    tokens = setting.batch_size * (3 * setting.sequence_length + 3 * setting.predictions + 1)
    in_lanes = device.lanes(setting)
    in_pieces = faster_in_pieces(setting.recompute, device.on_gpu)
    of_layers = 0 if device.on_gpu or in_pieces else COMPILED_LAYER
    return {
        "Python and its libraries": device.libraries,
        "compiled step": device.compiled + of_layers * config.num_hidden_layers,
        "weights": variables + copies(setting, device),
        "optimizer's slots": SLOTS * variables,
        # The token embeddings' is a sum of two; with accumulation there is the sum of parts beside those of one.
        "gradients": variables * (in_lanes + (setting.accumulation > 1)) + in_lanes * embeddings,
        "update": IN_UPDATE[setting.optimizer] * embeddings,
        "activations": activations(setting, device, logits),
        "masked-LM logits": logits,
        "input": 2 * 4 * tokens,  # a batch, and the next one
        # What a checkpoint holds while it is written and the next steps change it; of a GPU it is the host's memory.
        "checkpoint": 0 if device.on_gpu else (1 + SLOTS) * variables,
    }


def copies(setting: Setting, device: Device) -> int:
    """Bytes of copies of weights: queries', keys' and values' as one matrix, or all in half precision."""
    config, item = setting.config, device.item(setting)
    if setting.precision != "float32":
        return item * sum(parameters(config).values())
    return item * 3 * config.hidden_size**2 * (1 if setting.recompute else config.num_hidden_layers)


def activations(setting: Setting, device: Device, logits: int = 0) -> int:
    """Bytes of what is kept of a forward pass for the gradient, but for the logits; of a part of the batch.

    A layer keeps eight arrays [B, S, H] (queries, keys, values, the attended values, what both LayerNorms read and
    write), three [B, S, F] (what GELU reads, its tanh and what it writes) and two [B, A, S, S] (probabilities before
    and after dropout). Compiled in pieces there is no tanh, and the scores instead of those before. The last layer
    keeps keys and values, and the rest for what is read of it. Recomputation keeps a layer's input alone, but of the
    last, and has one layer whole at a time, which takes the place of the logits.
    """
    config, length = setting.config, setting.sequence_length
    tokens, read = setting.in_part * length, vectors_read(length, setting.predictions)
    narrow = tokens * config.hidden_size
    scores = setting.in_part * config.num_attention_heads * length**2
    in_pieces = faster_in_pieces(setting.recompute, device.on_gpu)
    layer = 8 * narrow + (2 if in_pieces else 3) * tokens * config.intermediate_size + 2 * scores
    whole = whole_layers(config, length, read)
    last = 2 * narrow + (layer - 2 * narrow) * read // length if whole < config.num_hidden_layers else 0
    kept, item = 3 * narrow + last, device.item(setting)
    if setting.recompute:
        return (kept + whole * narrow) * item + (max(layer * item - logits, 0) if whole else 0)
    return (kept + whole * layer) * item


def smallest_batch(setting: Setting, device: Device) -> int:
    """The smallest batch in as many parts and lanes as the setting's."""
    return setting.accumulation * device.lanes(setting)


def largest_batch(setting: Setting, limit: int, device: Device) -> int:
    """The largest batch in as many lanes whose memory is at most `limit` bytes, 0 where not even the smallest is."""
    unit = smallest_batch(setting, device)

    def needed(units: int) -> int:
        return sum(memory(replace(setting, batch_size=units * unit), device).values())

    if needed(1) > limit:
        return 0
    fits, does_not = 1, 2
    while needed(does_not) <= limit:
        fits, does_not = does_not, 2 * does_not
    while does_not - fits > 1:
        middle = (fits + does_not) // 2
        fits, does_not = (middle, does_not) if needed(middle) <= limit else (fits, middle)
    return fits * unit


def steps_of(tokens: int, epochs: float, setting: Setting, read: float) -> int:
    """Steps that read so many tokens so many times; `read` of them for each of a batch's slots."""
    return ceil(tokens * epochs / (setting.batch_size * setting.sequence_length * read))


class Speed(NamedTuple):
    """Seconds that a step takes for each parameter, for a sequence with one layer, and for it in each further one."""

    parameter: float
    sequence: float
    layer: float


def trial(setting: Setting, layers: int, batch_size: int) -> Setting:
    """The same step with other layers and another batch, taken whole, and in one lane, as a few sequences are."""
    config = replace(setting.config, num_hidden_layers=layers)
    return replace(setting, config=config, batch_size=batch_size, accumulation=1, lanes=1)


def speed_of(shallow: tuple[Setting, float], wide: tuple[Setting, float], deep: tuple[Setting, float]) -> Speed:
    """The speed in three trials with their seconds: the second has a larger batch, the third more layers than that."""
    (first, least), (second, more), (third, most) = shallow, wide, deep
    layers = third.config.num_hidden_layers - second.config.num_hidden_layers
    numbers, numbers_deep = (sum(parameters(one.config).values()) for one in (second, third))
    whole = max(0.0, more - least) / (second.batch_size - first.batch_size)  # of a sequence
    parameter = max(0.0, least - first.batch_size * whole) / numbers
    layer = max(0.0, most - more - parameter * (numbers_deep - numbers)) / (layers * second.batch_size)
    return Speed(parameter, max(0.0, whole - layer * (first.config.num_hidden_layers - 1)), layer)


def seconds_per_step(setting: Setting, speed: Speed) -> float:
    numbers = sum(parameters(setting.config).values())
    added = ADDING_PER_UPDATE * setting.accumulation if setting.accumulation > 1 else 0
    of_sequence = speed.sequence + speed.layer * (setting.config.num_hidden_layers - 1)
    return speed.parameter * numbers * (1 + added) + of_sequence * setting.batch_size


def device_of(blank: Device, trials: Sequence[tuple[Setting, int]]) -> Device:
    """`blank` with what the compiled step takes: what is left of the fullest moments of processes, in bytes, when all
    that shapes tell is taken off. The most of several, as their heaps differ, and too little memory ends a run.
    """
    nothing = blank._replace(compiled=0)
    left = [peak - sum(memory(setting, nothing).values()) for setting, peak in trials]
    return blank._replace(compiled=max(0, *left))
