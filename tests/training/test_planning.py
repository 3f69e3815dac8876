"""What a plan says is what the model has, what its graph computes and what a process takes."""

import json
import math
import re
from contextlib import contextmanager
from dataclasses import replace

import pytest
import tensorflow as tf
from stranger import call, recipe, refuse

from kbert.config import SIZES, BertConfig
from kbert.model.between import directly
from kbert.model.pretraining import BertPretrainer
from kbert.training import measurement, planning
from kbert.training.optimization import BertAdam
from kbert.training.planning import Device, Product, Setting, Speed

SMALL = BertConfig(31, 16, 3, 2, 32, max_position_embeddings=16)
BARE = Device(libraries=0, compiled=0, on_gpu=True)  # where compiled code takes none
PLAN = "python recipes/plan.py --no-measure --size tiny --batch-size 8"


def setting(config=SMALL, batch_size=8, sequence_length=16, predictions=3, **changes):
    return Setting(config, batch_size, sequence_length, predictions, **changes)


def total(setting, device=BARE):
    return sum(planning.memory(setting, device).values())


def test_the_parts_have_the_parameters_that_the_model_has():
    model = BertPretrainer(SMALL)
    head = [model.masked_lm_dense, model.masked_lm_norm]
    assert planning.parameters(SMALL) == {
        "embeddings": model.bert.embeddings.count_params(),
        "encoder layers": sum(layer.count_params() for layer in model.bert.encoder_layers),
        "pooler": model.bert.pooler.count_params(),
        "masked LM": sum(layer.count_params() for layer in head) + math.prod(model.masked_lm_bias.shape),
        "next sentence": model.next_sentence_dense.count_params(),
    }
    assert sum(planning.parameters(SMALL).values()) == model.count_params()


@pytest.mark.parametrize(
    ("size", "encoder", "heads"),
    [
        ("tiny", 4_385_920, 47_548),
        ("mini", 11_170_560, 97_340),
        ("small", 28_763_648, 295_228),
        ("medium", 41_373_184, 295_228),
        ("base", 109_482_240, 624_188),
        ("large", 335_141_888, 1_084_220),
    ],
)
def test_the_published_sizes_have_their_parameters(size, encoder, heads):
    parts = planning.parameters(BertConfig.from_size(size))
    assert parts["masked LM"] + parts["next sentence"] == heads
    assert sum(parts.values()) == encoder + heads
    assert size in SIZES


def test_the_products_of_a_small_bert_are_those_counted_by_hand():
    config = BertConfig(10, 4, 3, 2, 8)
    forward = {product.name: product.operations for product in planning.products(config, 2, 3, 1)}
    # Of the last layer two of a row's three vectors are read, [CLS]'s and the prediction's.
    assert forward == {
        "queries, keys, values": 2 * (2 * 6 * 12 * 4),
        "attention scores": 2 * (2 * (2 * 2) * 3 * 3 * 2),
        "attended values": 2 * (2 * (2 * 2) * 3 * 2 * 3),
        "attention projection": 2 * (2 * 6 * 4 * 4),
        "feed-forward, inner": 2 * (2 * 6 * 8 * 4),
        "feed-forward, outer": 2 * (2 * 6 * 4 * 8),
        "last layer, queries": 2 * 4 * 4 * 4,
        "last layer, keys, values": 2 * 6 * 8 * 4,
        "last layer, attention scores": 2 * (2 * 2) * 2 * 3 * 2,
        "last layer, attended values": 2 * (2 * 2) * 2 * 2 * 3,
        "last layer, attention projection": 2 * 4 * 4 * 4,
        "last layer, feed-forward, inner": 2 * 4 * 8 * 4,
        "last layer, feed-forward, outer": 2 * 4 * 4 * 8,
        "pooler": 2 * 2 * 4 * 4,
        "masked LM, hidden": 2 * 2 * 4 * 4,
        "masked LM, logits": 2 * 2 * 10 * 4,
        "next sentence": 2 * 2 * 2 * 4,
    }
    # [6, 4] x [4, 12]: the gradients are [6, 12] x [12, 4] and [4, 6] x [6, 12].
    assert Product("", 1, 1, 6, 12, 4).backward == (Product("", 1, 1, 6, 4, 12), Product("", 1, 1, 4, 12, 6))
    # Where two of a row of three are predicted, all are read.
    assert not [product.name for product in planning.products(config, 2, 3, 2) if "last" in product.name]


def graph_operations(graph) -> int:
    """Of all matrix products in a graph and the graphs that it calls, by their shapes."""
    counted = 0
    for node in graph.get_operations():
        if node.type in ("MatMul", "BatchMatMulV2", "BatchMatMulV3"):
            left, transposed = node.inputs[0].shape, node.get_attr("transpose_a" if node.type == "MatMul" else "adj_x")
            counted += 2 * node.outputs[0].shape.num_elements() * left[-2 if transposed else -1]
    return counted


@pytest.mark.parametrize("predictions", [3, 15])
def test_a_step_has_the_operations_of_the_products_in_its_graph(predictions):
    of, model = setting(predictions=predictions), BertPretrainer(SMALL)
    model.compile(jit_compile=False)
    model.bert.piece = directly  # others add rows in products with ones
    features = {name: tf.constant(value) for name, value in measurement.random_batch(of).items()}

    def gradients():
        return model._gradients(features, model.weights_of(features), [state.value for state in model._seed_states()])

    graph = tf.function(gradients, autograph=False).get_concrete_function().graph
    assert graph_operations(graph) == sum(sum(both) for both in planning.operations(of).values())


def test_recomputation_takes_the_whole_layers_forward_operations_once_more_and_no_others():
    once, twice = (planning.operations(setting(recompute=recompute)) for recompute in (False, True))
    in_layers = {product.name for product in planning.layer_products(SMALL, 2, 8, 16, 16)}
    assert len(in_layers) == 6
    for name, (forward, backward) in once.items():
        assert twice[name] == (forward, backward + forward * (name in in_layers))


def test_memory_grows_by_kind_with_what_the_kind_is_of():
    of = setting(batch_size=8, accumulation=2)
    kinds, weights = planning.memory(of, BARE), 4 * sum(planning.parameters(SMALL).values())
    assert kinds["weights"] == weights + 4 * 3 * 3 * 16**2  # and queries', keys' and values' as one matrix
    assert kinds["optimizer's slots"] == 2 * weights
    assert kinds["masked-LM logits"] == 3 * 4 * (4 * 3) * 31  # of half the batch
    of_token, scores = 8 * 16 + 3 * 32, 2 * 4 * 2 * 16**2
    # Of the last layer keys and values are kept, and the rest for 4 of the 16 vectors in a row.
    last = 4 * 16 * 2 * 16 + (4 * 16 * (of_token - 2 * 16) + scores) // 4
    assert kinds["activations"] == 4 * (2 * (4 * 16 * of_token + scores) + last + 3 * 4 * 16 * 16)
    larger = planning.memory(replace(of, batch_size=16), BARE)
    assert {name for name in kinds if larger[name] != kinds[name]} == {"activations", "masked-LM logits", "input"}
    assert larger["activations"] == 2 * kinds["activations"]
    # On CPUs a checkpoint takes memory, and nobody keeps GELU's tanh.
    assert total(of, Device(7, 5)) == total(of) + 7 + 5 + 3 * weights - 4 * (2 + 4 / 16) * 4 * 16 * 32


def test_each_lane_has_the_gradients_of_all_weights():
    variables, of_tokens, cpu = 4 * sum(planning.parameters(SMALL).values()), 4 * 31 * 16, Device()
    for accumulation, sums in ((1, 0), (2, 1)):
        for lanes in (1, 2):
            of = setting(accumulation=accumulation, lanes=lanes)
            assert planning.memory(of, cpu)["gradients"] == (sums + lanes) * variables + lanes * of_tokens
    twice, once = setting(recompute=True, lanes=2), setting(recompute=True)
    assert total(twice, cpu) == total(once, cpu)  # compiled whole, and an accelerator, have none
    assert total(of, BARE) == total(replace(of, lanes=1), BARE)


def test_parts_and_recomputation_take_less_and_lamb_more():
    of = setting(BertConfig.from_size("mini"), batch_size=64, sequence_length=128, predictions=20)
    whole, kinds = total(of), planning.memory(of, BARE)
    assert total(replace(of, accumulation=4)) < 0.6 * whole
    twice = replace(of, recompute=True)
    assert total(twice) < 0.6 * whole
    assert planning.memory(twice, BARE)["masked-LM logits"] * 3 == kinds["masked-LM logits"]
    assert total(replace(of, optimizer="lamb")) > whole
    half = replace(of, precision="bfloat16")
    assert planning.memory(half, BARE)["activations"] * 2 == kinds["activations"]
    assert planning.activations(of, Device()) == 2 * planning.activations(half, Device())
    # What is computed twice XLA for CPUs compiles whole, in float32.
    twice = [planning.activations(replace(one, recompute=True), Device()) for one in (of, half)]
    assert twice[0] == twice[1]


@pytest.mark.parametrize(
    ("changes", "unit"),
    [({}, 1), ({"accumulation": 3}, 3), ({"recompute": True}, 1), ({"optimizer": "lamb"}, 1)]
    + [({"lanes": 2}, 2), ({"accumulation": 3, "lanes": 2}, 6), ({"recompute": True, "lanes": 2}, 1)],
)
def test_the_largest_batch_fits_and_the_next_larger_one_does_not(changes, unit):
    of, device, limit = setting(batch_size=3, **changes), Device(), 2 * 10**9
    largest = planning.largest_batch(of, limit, device)
    assert largest % unit == 0
    assert total(replace(of, batch_size=largest), device) <= limit
    assert total(replace(of, batch_size=largest + unit), device) > limit
    needed = total(replace(of, batch_size=unit), device)
    assert planning.largest_batch(of, needed, device) == unit
    assert planning.largest_batch(of, needed - 1, device) == 0


def test_a_corpus_has_the_steps_of_its_tokens():
    assert planning.steps_of(tokens=128 * 1000, epochs=2, setting=setting(), read=0.5) == 4000
    assert planning.steps_of(tokens=128 * 1000 + 1, epochs=1, setting=setting(), read=1.0) == 1001


def test_trials_tell_the_speed_and_what_the_compiled_step_takes_though_the_machine_is_slow_for_a_while(monkeypatch):
    speed, device, tried = Speed(1e-9, 3e-4, 2e-4), Device(700, 300), []

    @contextmanager
    def fresh_process(prepare):
        of_process, fullest = [], 0
        tried.append(of_process)

        def measure(of, seconds):
            nonlocal fullest
            slower = 3 if 4 <= len(of_process) < 7 else 1
            # What was measured before in the process stays with it.
            fullest += sum(planning.memory(of, device).values()) if of not in of_process else 0
            of_process.append(of)
            taken = slower * planning.seconds_per_step(of, speed)
            return measurement.Measured(taken, device.libraries, fullest, 10**9, False)

        yield measure

    monkeypatch.setattr(measurement, "fresh_process", fresh_process)
    of, done = setting(BertConfig.from_size("base"), 64, 128, 20, accumulation=2, lanes=2), []
    found, device_found, limit = measurement.calibrate(of, 1.0, lambda: None, lambda *place: done.append(place))
    assert found == pytest.approx(speed) and device_found == device and limit == 10**9
    assert done == [(number, 10) for number in range(1, 11)]
    (shallow,), (deep, wide, *_) = tried
    assert [one.config.num_hidden_layers for one in (shallow, wide, deep)] == [1, 1, 4]
    assert 4 * shallow.batch_size <= wide.batch_size == deep.batch_size <= of.in_part / 2
    assert tried[1] == 3 * [deep, wide, shallow]
    assert {one.lanes for one in tried[1]} == {1}
    for layers, sequences in ((1, 1), (2, 1), (1, 2)):
        least = setting(replace(SMALL, num_hidden_layers=layers), batch_size=sequences)
        assert measurement.calibrate(least, 1.0, lambda: None)[0] == pytest.approx(speed)


def test_a_setting_that_is_measured_again_goes_on(monkeypatch):
    begun, of = [], setting(replace(SMALL, num_hidden_layers=1))

    def new_trainer(setting):
        begun.append(BertPretrainer(setting.config))
        begun[-1].compile(BertAdam(1e-4))
        return begun[-1]

    monkeypatch.setattr(measurement, "FIRST_STEPS", 3)
    monkeypatch.setattr(measurement, "new_trainer", new_trainer)
    steps = [measurement.measure_step(of, 0) and int(begun[0].optimizer.iterations) for _ in range(3)]
    assert len(begun) == 1 and steps == [4, 7, 10]  # with the first step of each, which is not timed


def test_a_part_added_to_the_sum_takes_time():
    speed = Speed(1e-9, 0, 0)
    whole, parts = (planning.seconds_per_step(setting(accumulation=parts), speed) for parts in (1, 4))
    assert parts == pytest.approx(whole * (1 + 4 * planning.ADDING_PER_UPDATE))


@pytest.mark.long
def test_a_step_in_a_process_of_its_own_is_beside_what_was_predicted(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    config = tmp_path / "bert_config.json"
    replace(SMALL, num_hidden_layers=1).to_json(config)
    flags = "--sequence-length 16 --batch-size 4 --tokens 6400 --read 1 --epochs 3 --memory 2 --seconds 0.01"
    call(f"python recipes/plan.py --no-measure --gflops 1 --check --config {config} --output plan {flags}")
    metrics = json.loads((tmp_path / "plan" / "metrics.json").read_text())
    assert metrics["parameters"] == BertPretrainer(replace(SMALL, num_hidden_layers=1)).count_params()
    assert metrics["seconds per step"] == pytest.approx(metrics["operations"] / 10**9)
    assert metrics["steps"] == 300 and metrics["hours"] == pytest.approx(300 * metrics["seconds per step"] / 3600)
    assert metrics["measured seconds per step"] > 0
    # Beside the default of the compiled step there is next to nothing in so small a model.
    assert 0.5 < metrics["memory, compiled step"] / metrics["measured memory above imports"] < 2
    assert "predicted / measured" in capsys.readouterr().out


@pytest.mark.long
@pytest.mark.alone
@pytest.mark.parametrize(
    "flags",
    [
        "--size mini --batch-size 32",
        "--size mini --batch-size 64 --optimizer.accumulation 4",
        "--size mini --batch-size 64 --devices.recompute --optimizer.name lamb",
        "--config wide.json --batch-size 16",
    ],
)
def test_memory_is_predicted_within_15_percent_by_trials_with_fewer_layers_and_smaller_batches(tmp_path, flags):
    BertConfig.from_size("base", num_hidden_layers=4).to_json(tmp_path / "wide.json")
    command = f"python recipes/plan.py {flags} --seconds 2 --check --output {tmp_path}"
    done = recipe(command, tmp_path)
    assert done.returncode == 0, done.stderr
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    predicted = metrics["memory"] - metrics["memory, Python and its libraries"]
    assert predicted == pytest.approx(metrics["measured memory above imports"], rel=0.15)
    # The machine may have other work.
    assert metrics["seconds per step"] == pytest.approx(metrics["measured seconds per step"], rel=0.4)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--sequence-length 513", "sequence_length is 513, expected 8 to 512, the model's positions"),
        ("--sequence-length 7", "sequence_length is 7, expected 8"),
        ("--predictions 129", "predictions is 129, expected 1 to 128, the sequence's"),
        ("--predictions 0", "predictions is 0, expected 1"),
        ("--batch-size 0", "batch_size is 0, expected a multiple, at least 1, of accumulation 1"),
        ("--optimizer.accumulation 3", "batch_size is 8, expected a multiple, at least 1, of accumulation 3"),
        ("--memory 1", "memory is 1 GB, expected at least 1.25 for a batch of 1"),
        ("--batch-size 800 --memory 2 --check", "--batch-size 800 does not fit; expected one that does for --check"),
        ("--memory 0", "--memory 0: expected more than 0"),
        ("--config bert_config.json", "--size tiny: bert_config.json brings its own; expected one of both flags"),
        ("--vocabulary-size 0", "--vocabulary-size 0: expected at least 1"),
        ("--steps 1 --tokens 1", "--steps 1 and --tokens 1: expected one of them"),
        ("--epochs 2", "--epochs 2: expected --tokens beside it"),
        ("--tokens 9 --read 1.1", "--read 1.1: expected at most 1"),
        ("--steps 0", "--steps 0: expected more than 0"),
        ("--measure --gflops 1", "--gflops 1.0 is measured; expected --no-measure beside it"),
        ("--steps 9", "--steps 9 with --no-measure: expected --gflops beside it"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(flags, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refuse("plan", f"{PLAN.partition('.py ')[2]} {flags}", message)


def test_what_fits_in_one_way_alone_is_planned(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    call(f"{PLAN.replace('tiny', 'base')} --sequence-length 512 --batch-size 1 --memory 5.1")
    assert re.search(r"largest batch within 5.1 GB *│ 1 *│ none", capsys.readouterr().out)


def test_the_operations_of_a_large_step_have_no_exponent(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    call(f"{PLAN.replace('tiny', 'large')} --sequence-length 512 --batch-size 64 --memory 100")
    assert re.search(r"all +│ 2\d,\d{3} +│ 4\d,\d{3} +│", capsys.readouterr().out)


def test_an_unknown_size_is_one_line_and_status_2(tmp_path):
    done = recipe(PLAN.replace("tiny", "huge"), tmp_path)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "huge" in done.stderr
