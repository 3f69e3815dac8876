"""Says what a pre-training will take before it begins: parameters, operations, memory, hours.

    python recipes/plan.py --size base --sequence-length 128 --batch-size 32 --steps 100000 --check

Counted from shapes; a minute or two of short steps on this machine tell how fast it is and what the compiled program
takes. --check then runs the step itself and prints what it took beside what was predicted.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from kbert.command_line import import_tensorflow, run

READ = 0.73  # Wikipedia at 128 (0.55 at 512); a book a document 0.76 (0.69), 0.31 where books fall into short ones
CHECK_LONGER = 4  # than a trial
MEGA, GIGA = 10**6, 10**9


@dataclass(frozen=True)
class OptimizerRule:
    """Those of pretrain.py's that change what a step takes.

    Args:
        name: BERT's Adam, or LAMB.
        accumulation: parts that each batch is taken in, one after the other, where memory is short.
    """

    name: Literal["adam", "lamb"] = "adam"
    accumulation: int = 1


@dataclass(frozen=True)
class DeviceRule:
    """Those of pretrain.py's that change what a step takes on one device.

    Args:
        precision: of products and what is between them; variables and sums are float32. bfloat16 is faster on GPUs
            and CPUs that have it, but on a CPU not with recompute.
        recompute: keep only the layers' outputs for the gradient and compute the rest twice: less memory, more time.
    """

    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    recompute: bool = False


def main(
    size: Literal["tiny", "mini", "small", "medium", "base", "large"] | None = None,
    config: str | None = None,
    vocabulary_size: int | None = None,
    sequence_length: int = 128,
    batch_size: int = 256,
    predictions: int | None = None,
    steps: int | None = None,
    tokens: int | None = None,
    epochs: float = 1.0,
    read: float = READ,
    memory: float | None = None,
    measure: bool = True,
    gflops: float | None = None,
    seconds: float = 3.0,
    check: bool = False,
    output: str | None = None,
    optimizer: OptimizerRule = OptimizerRule(),
    devices: DeviceRule = DeviceRule(),
) -> None:
    """Says what a pre-training with masked LM and next sentence prediction will take, on one device.

    Memory is that of the training process at its fullest, while a checkpoint is written, without what reading the text
    and evaluating add; on a GPU that of the GPU. Time is that of the steps.

    Args:
        size: tiny (2 layers of 128, the default) to large (24 of 1,024).
        config: a bert_config.json instead.
        vocabulary_size: by default 30,522, Google's, or that of --config.
        sequence_length: tokens per sequence.
        batch_size: sequences per update.
        predictions: per sequence; by default what a full sequence needs (20 at 128, 77 at 512).
        steps: updates of the weights.
        tokens: of the corpus, instead of steps.
        epochs: times that the corpus is read.
        read: tokens of the corpus that are read for each of a batch's slots; less than one, as some are padding, and
            what a random second sentence stands in for is read again.
        memory: gigabytes (10^9 bytes) that there are; by default what this machine or its GPU has.
        measure: run short steps, which takes a minute or two; without, the plan is a CPU's and memory less exact.
        gflops: how many 10^9 operations a second the device does in a step, for --no-measure.
        seconds: how long each of the three kinds of short steps is timed, a third of it in each of three turns.
        check: run the step itself, at least four times, and print what it took beside what was predicted.
        output: folder for metrics.json.
        optimizer: pretrain.py's.
        devices: pretrain.py's.
    """
    check_config(size, config, vocabulary_size)
    check_work(steps, tokens, epochs, read)
    check_measuring(measure, gflops, seconds, memory)
    if (steps or tokens) and not (measure or gflops):
        work = f"--steps {steps}" if steps else f"--tokens {tokens}"
        raise ValueError(f"{work} with --no-measure: expected --gflops beside it")
    from kbert import lanes, report
    from kbert.config import BertConfig
    from kbert.training import measurement, planning

    # Count.
    if config:
        model = BertConfig.from_json(config, gelu="gelu_tanh")  # which of the two does not matter here
    else:
        model = BertConfig.from_size(size or "tiny", vocab_size=vocabulary_size or 30522)
    setting = planning.Setting(
        model,
        batch_size,
        sequence_length,
        # 15% rounded up, as pretrain.py has it.
        -(-15 * sequence_length // 100) if predictions is None else predictions,
        optimizer.name,
        optimizer.accumulation,
        devices.precision,
        devices.recompute,
    )
    setting = replace(setting, lanes=lanes.count(setting.in_part, sequence_length, setting.recompute))
    parts, counted = planning.parameters(model), planning.operations(setting)
    parts |= {"all": sum(parts.values())}
    total = sum(sum(both) for both in counted.values())
    metrics = {"parameters": parts["all"], "operations": total}
    report.table("Parameters", {name: f"{number:,}" for name, number in parts.items()})
    report.table("Operations of a step, 10^9", shares(counted, total), ("", "forward", "backward", "share"))

    # Measure.
    speed, device, limit = None, planning.Device(), measurement.machine_memory()
    if measure:
        with report.progress("Measuring short steps") as progress:
            speed, device, limit = measurement.calibrate(setting, seconds, import_tensorflow, progress)
    limit = int(memory * GIGA) if memory else limit

    # Memory and time.
    metrics |= tell_memory(setting, device, limit)
    per_step = total / gflops / GIGA if gflops else planning.seconds_per_step(setting, speed) if measure else None
    if per_step:
        work = planning.steps_of(tokens, epochs, setting, read) if tokens else steps
        metrics |= tell_time(setting, per_step, total, work)
    if check:
        if metrics["memory"] > limit:
            raise ValueError(f"--batch-size {batch_size} does not fit; expected one that does for --check")
        with measurement.fresh_process(import_tensorflow) as measure_setting:
            metrics |= tell_check(metrics, measure_setting(setting, CHECK_LONGER * seconds))
    if output:
        Path(output).mkdir(parents=True, exist_ok=True)
        report.write(output, metrics)


def check_config(size: str | None, config: str | None, vocabulary_size: int | None) -> None:
    """Raises ValueError for a size or a vocabulary beside a config, which brings its own."""
    for name, value in (("size", size), ("vocabulary-size", vocabulary_size)):
        if config and value is not None:
            raise ValueError(f"--{name} {value}: {config} brings its own; expected one of both flags")
    if vocabulary_size is not None and vocabulary_size < 1:
        raise ValueError(f"--vocabulary-size {vocabulary_size}: expected at least 1")


def check_work(steps: int | None, tokens: int | None, epochs: float, read: float) -> None:
    """Raises ValueError for two answers to how long the run is, and for none where a part of one is given."""
    if steps is not None and tokens is not None:
        raise ValueError(f"--steps {steps} and --tokens {tokens}: expected one of them")
    for name, value, default in (("epochs", epochs, 1.0), ("read", read, READ)):
        if tokens is None and value != default:
            raise ValueError(f"--{name} {value:g}: expected --tokens beside it")
    check_positive(steps=steps, tokens=tokens, epochs=epochs, read=read)
    if read > 1:
        raise ValueError(f"--read {read:g}: expected at most 1")


def check_measuring(measure: bool, gflops: float | None, seconds: float, memory: float | None) -> None:
    """Raises ValueError for a speed that is both given and measured, and for numbers that are none."""
    if measure and gflops is not None:
        raise ValueError(f"--gflops {gflops} is measured; expected --no-measure beside it")
    check_positive(seconds=seconds, gflops=gflops, memory=memory)


def check_positive(**flags: float | None) -> None:
    """Raises ValueError for one that is given and not above 0."""
    for name, value in flags.items():
        if value is not None and not value > 0:
            raise ValueError(f"--{name} {value:g}: expected more than 0")


def shares(counted: dict, total: int) -> dict:
    """Rows of a table: forward and backward operations of each product, their sum and its share."""
    from kbert import report

    every = tuple(sum(both[way] for both in counted.values()) for way in (0, 1))
    rows = counted | {"all": every}
    return {
        name: (*(report.four_figures(one / GIGA) for one in both), f"{sum(both) / total:.1%}")
        for name, both in rows.items()
    }


def tell_memory(setting, device, limit: int) -> dict:
    """Prints the memory by kind, as asked for and with recomputation, and the largest batch that fits."""
    from kbert import report
    from kbert.training import planning

    ways = {"recomputed": True} if setting.recompute else {"kept": False, "recomputed": True}
    kinds = [planning.memory(replace(setting, recompute=way), device) for way in ways.values()]
    rows = {name: tuple(f"{kind[name] / MEGA:,.0f}" for kind in kinds) for name in kinds[0]}
    rows["all"] = tuple(f"{sum(kind.values()) / MEGA:,.0f}" for kind in kinds)
    batches = [planning.largest_batch(replace(setting, recompute=way), limit, device) for way in ways.values()]
    if not any(batches):
        smallest = replace(setting, batch_size=planning.smallest_batch(setting, device))
        least = min(sum(planning.memory(replace(smallest, recompute=way), device).values()) for way in ways.values())
        told = f"{least / GIGA:.3g} for a batch of {smallest.batch_size}"
        raise ValueError(f"memory is {limit / GIGA:.3g} GB, expected at least {told}")
    rows[f"largest batch within {limit / GIGA:,.1f} GB"] = tuple(f"{batch:,}" if batch else "none" for batch in batches)
    of = "GPU (not verified on one)" if device.on_gpu else "process"
    report.table(f"Memory of the {of}, 10^6 bytes", rows, ("", *(f"activations {way}" for way in ways)))
    if sum(kinds[0].values()) > limit:
        report.CONSOLE.print(f"Batch {setting.batch_size} does not fit.")
    named = {f"memory, {name}": number for name, number in kinds[0].items()}
    return named | {"memory": sum(kinds[0].values()), "largest batch": batches[0]}


def tell_time(setting, per_step: float, total: int, steps: int | None) -> dict:
    """Prints the time of a step and of all steps."""
    from kbert import report

    told = {"seconds per step": per_step, "sequences per second": setting.batch_size / per_step}
    told |= {"token slots per second": setting.batch_size * setting.sequence_length / per_step}
    told |= {"10^9 operations per second": total / per_step / GIGA}
    told |= {"steps": steps, "hours": steps * per_step / 3600} if steps else {}
    report.table("Time", told)
    return told


def tell_check(predicted: dict, measured) -> dict:
    """Prints what the step took beside what was predicted."""
    from kbert import report

    before = {"memory above imports": predicted["memory"] - predicted["memory, Python and its libraries"]}
    after = {"memory above imports": measured.peak - measured.libraries}
    if "seconds per step" in predicted:
        before["seconds per step"], after["seconds per step"] = predicted["seconds per step"], measured.seconds
    ratios = {name: before[name] / after[name] for name in before}
    rows = {name: (float(before[name]), float(after[name]), ratios[name]) for name in before}
    report.table("Check", rows, ("", "predicted", "measured", "predicted / measured"))
    return {f"measured {name}": value for name, value in after.items()}


if __name__ == "__main__":
    run(main, tensorflow=False)
