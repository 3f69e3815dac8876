"""Where a run trains: on one device, on several of a process, or in several processes that train as one.

one           this process's first device
mirrored      all GPUs of this process; without any, the parts of the CPU that are asked for
multi_worker  the devices of several processes, each started with the same command and its own number
tpu           the TPU that TensorFlow finds (not verified on hardware)
"""

import contextlib
import functools
import json
from typing import NamedTuple

import tensorflow as tf

from kbert.training.meeting import difference, meet

WORDS = ("one", "mirrored", "multi_worker", "tpu")
SUM = tf.distribute.ReduceOp.SUM


# What TensorFlow raises where another process is gone; the second ones also for what fails in this one.
LOST = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError, tf.errors.DeadlineExceededError)
PERHAPS_LOST = (tf.errors.FailedPreconditionError, tf.errors.InternalError, tf.errors.UnknownError)
IN_PYTHON = "Traceback (most recent call last)"  # which they have of what failed while this one made a batch


class WorkerLost(ValueError):
    """Another process that trains the same run is gone."""


class Cluster(NamedTuple):
    """The addresses, host:port, of all processes, of which the first is the chief, and the number of this one."""

    workers: tuple[str, ...]
    number: int

    @classmethod
    def from_json(cls, text: str, source: str = "TF_CONFIG") -> "Cluster":
        """What TF_CONFIG says; raises ValueError for what is not JSON or describes no cluster of workers."""
        try:
            content = json.loads(text)
        except ValueError as error:
            raise ValueError(f"{source} is not JSON ({error}): {text[:80]}") from None
        expected = '{"cluster": {"worker": ["host:port", ...]}, "task": {"type": "worker", "index": 0}}'
        try:
            jobs, task = content["cluster"], content["task"]
            chiefs, workers = jobs.get("chief", []), jobs.get("worker", [])
            before = {"chief": 0, "worker": len(chiefs)}[task["type"]]
            cluster = cls((*chiefs, *workers), before + int(task["index"]))
        except (KeyError, TypeError, AttributeError, ValueError):
            raise ValueError(f"{source} is {text[:200]}, expected {expected}") from None
        cluster.check(source)
        return cluster

    def check(self, source: str) -> None:
        """Raises ValueError for addresses that are none and for a number that no worker has."""
        for address in self.workers:
            host, _, port = str(address).rpartition(":")
            if not host or not port.isdecimal() or not 0 < int(port) < 65536:
                raise ValueError(f"{source}: {address!r} is no address, expected host:port")
        if len(set(self.workers)) < len(self.workers):
            raise ValueError(f"{source}: an address is there twice in {', '.join(self.workers)}")
        if not 0 <= self.number < len(self.workers):
            raise ValueError(f"{source}: this is worker {self.number}, expected 0 to {len(self.workers) - 1}")


def new_strategy(
    word: str, replicas: int | None = None, cluster: Cluster | None = None, wait: float = 600.0
) -> tf.distribute.Strategy:
    """The strategy of a word; to be made before TensorFlow computes anything.

    replicas: parts of the CPU, for mirrored and multi_worker where there is no GPU. wait: seconds, for the others of a
    cluster. Raises ValueError for what this machine does not have, and as `meet` does.
    """
    gpus = tf.config.list_physical_devices("GPU")
    if replicas is not None and (replicas < 1 or gpus or word not in ("mirrored", "multi_worker")):
        why = f"there are {len(gpus)} GPUs, and each is a replica" if gpus else f"the strategy is {word}"
        raise ValueError(f"replicas is {replicas}; expected a number of parts of the CPU, at least 1; {why}")
    if (cluster is not None) != (word == "multi_worker"):
        raise ValueError(f"the strategy is {word} and the cluster {cluster}; expected a cluster for multi_worker alone")
    match word:
        case "one":
            return tf.distribute.get_strategy()
        case "mirrored":
            devices = parts_of_cpu(replicas)
            if not gpus and len(devices) < 2:
                raise ValueError("mirrored: there is no GPU; expected at least 2 replicas, parts of the CPU")
            return tf.distribute.MirroredStrategy(None if gpus else devices)
        case "multi_worker":
            said = {"the addresses": list(cluster.workers), "devices a process": len(gpus) or replicas or 1}
            meet(cluster.workers, cluster.number, said, wait)
            parts_of_cpu(replicas)
            return of_cluster(cluster)
        case "tpu":
            return of_tpu()
    raise ValueError(f"the strategy is {word!r}, expected one of {', '.join(WORDS)}")


def parts_of_cpu(count: int | None) -> list[str]:
    """Makes so many devices of the CPU; None leaves it whole."""
    if count is None:
        return ["CPU:0"]
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
    return [f"CPU:{number}" for number in range(count)]


def of_cluster(cluster: Cluster) -> tf.distribute.Strategy:
    kind = tf.distribute.experimental.CommunicationImplementation
    gpus = tf.config.list_physical_devices("GPU")
    try:
        return tf.distribute.MultiWorkerMirroredStrategy(
            tf.distribute.cluster_resolver.SimpleClusterResolver(
                tf.train.ClusterSpec({"worker": list(cluster.workers)}),
                task_type="worker",
                task_id=cluster.number,
                rpc_layer="grpc",
            ),
            tf.distribute.experimental.CommunicationOptions(implementation=kind.AUTO if gpus else kind.RING),
        )
    except (*LOST, *PERHAPS_LOST) as error:
        raise lost(error) from error


def of_tpu() -> tf.distribute.Strategy:
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver.connect()
    except (ValueError, tf.errors.OpError) as error:
        raise ValueError(f"tpu: TensorFlow finds none ({str(error).splitlines()[0]})") from None
    return tf.distribute.TPUStrategy(resolver)


def only_cpus() -> bool:
    """Whether there is no accelerator. TensorFlow sets up its devices for that: none can be configured any more."""
    return all(device.device_type == "CPU" for device in tf.config.list_logical_devices())


def workers(strategy: tf.distribute.Strategy) -> int:
    """How many processes train together."""
    resolver = strategy.cluster_resolver
    return len(resolver.cluster_spec().as_dict().get("worker", [])) or 1 if resolver else 1


def is_chief(strategy: tf.distribute.Strategy) -> bool:
    """Whether this process writes the run's files: the first one does."""
    return workers(strategy) == 1 or strategy.cluster_resolver.task_id == 0


@contextlib.contextmanager
def loss_is_told(strategy: tf.distribute.Strategy):
    """Raises WorkerLost for what TensorFlow raises in the middle of it where another process is gone."""
    try:
        yield
    except (*LOST, *PERHAPS_LOST) as error:
        if workers(strategy) == 1 or (isinstance(error, PERHAPS_LOST) and IN_PYTHON in str(error)):
            raise
        raise lost(error) from error


def lost(error: tf.errors.OpError) -> WorkerLost:
    what = "another worker is gone" if isinstance(error, LOST) else "another worker is gone, or this one failed"
    why = " ".join(str(error).split())[:300]
    return WorkerLost(f"{what}; start all of them again with the same command ({why})")


@contextlib.contextmanager
def chief_first(strategy: tf.distribute.Strategy):
    """What is in it is done by the chief, then by the others, who find its files there.

    What the chief refuses, a ValueError or OSError, all of them refuse.
    """
    if workers(strategy) == 1:
        yield
        return
    if not is_chief(strategy):
        refused = exchanged(strategy, {})[0].get("refused")
        if refused:
            raise ValueError(f"the chief: {refused}")
        yield
        return
    try:
        yield
    except (ValueError, OSError) as error:
        exchanged(strategy, {"refused": str(error)})
        raise
    exchanged(strategy, {})


def agree(strategy: tf.distribute.Strategy, settings: dict) -> None:
    """Waits for all processes; raises ValueError in each, naming what differs, unless they have the same settings."""
    if workers(strategy) == 1:
        return
    told = difference(exchanged(strategy, settings))
    if told:
        raise ValueError(told)


def any_says(strategy: tf.distribute.Strategy, said: bool) -> bool:
    """Whether any process says so; waits for all of them."""
    return said if workers(strategy) == 1 else any(one["said"] for one in exchanged(strategy, {"said": said}))


def exchanged(strategy: tf.distribute.Strategy, content: dict) -> list[dict]:
    """What each process gives, in their order."""
    mine = tf.strings.unicode_decode(json.dumps(content, sort_keys=True), "UTF-8")
    with loss_is_told(strategy):
        lengths, codes = (strategy.experimental_local_results(values)[0] for values in gather(strategy)(mine))
    texts = tf.strings.unicode_encode(tf.RaggedTensor.from_row_lengths(codes, lengths), "UTF-8").numpy()
    # Every replica of a process gives the same.
    return [json.loads(text) for text in texts[:: len(texts) // workers(strategy)]]


@functools.cache
def gather(strategy: tf.distribute.Strategy):
    """A graph: a vector of each replica -> the lengths of all, and all of them one after the other."""

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int32)], autograph=False)
    def gathered(mine):
        def of_replica():
            replica = tf.distribute.get_replica_context()
            here = tf.identity(mine)  # on the replica's own device, as what is gathered must be
            return replica.all_gather(tf.size(here)[None], 0), replica.all_gather(here, 0)

        return strategy.run(of_replica)

    return gathered


def shared_out(batches: tf.data.Dataset, strategy: tf.distribute.Strategy):
    """Global batches as what each replica takes of them: the same rows however replicas lie in processes.

    Replica r of R takes the r-th of R equal parts. Every process makes whole batches, which is cheap beside the step.
    Raises ValueError for batches that the replicas cannot share.
    """
    replicas = strategy.num_replicas_in_sync
    if replicas == 1:
        return batches
    size = batches.element_spec["input_ids"].shape[0]
    if size is None or size % replicas:
        raise ValueError(f"a batch has {size} sequences, which {replicas} replicas cannot share equally")

    def parts(batch):
        """[R * n, ...] -> [R, n, ...]; the position of the batch is that of every part."""
        batch = dict(batch)
        position = {name: batch.pop(name) for name in ("data_position",) if name in batch}
        rows = {}
        for name, values in batch.items():
            rows[name] = tf.reshape(values, tf.concat([[replicas, size // replicas], tf.shape(values)[1:]], 0))
            rows[name].set_shape([replicas, size // replicas, *values.shape[1:]])
        return rows | {name: tf.repeat(values[None], replicas, axis=0) for name, values in position.items()}

    def of_process(context):
        here = replicas // context.num_input_pipelines
        first = context.input_pipeline_id * here

        def local(batch):
            return {name: values[first : first + here] for name, values in parts(batch).items()}

        mine = batches.map(tf.autograph.experimental.do_not_convert(local)).unbatch()
        return mine.prefetch(here)

    # Every process has as many batches: none asks the others at each step, and shapes stay static.
    strategy.extended.experimental_enable_get_next_as_optional = False
    return strategy.distribute_datasets_from_function(of_process)
