"""Every command of the README runs, tiny; a run goes on after what stopped it."""

import contextlib
import dataclasses
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import uvicorn
from safetensors.numpy import load_file
from served import free_port, running
from stranger import FURTHER, PRETRAIN, ROOT, SMALLER, call, module_of, readme_commands, recipe

import kbert
from tests.training.logged import events
from tests.training.tiny_run import free_addresses


@pytest.fixture
def port(monkeypatch):
    """A free port, on which serve.py serves in a thread until the test's end, as it would in a second terminal."""
    with contextlib.ExitStack() as servers:
        monkeypatch.setattr(uvicorn, "run", lambda served, port, **_: servers.enter_context(running(served, port)))
        yield free_port()


# What other tests run, too.
SLOW = re.compile("--start|fine_tune_(squad|ner|swag)")


@pytest.mark.parametrize("slow", [False, pytest.param(True, marks=pytest.mark.long)])
def test_every_command_of_the_readme_runs(folder, tmp_path, monkeypatch, port, capsys, slow):
    here = tmp_path / "here"
    shutil.copytree(folder, here)
    monkeypatch.chdir(here)
    commands = [
        command for command in readme_commands() if "benchmark" not in command and (slow or not SLOW.search(command))
    ]
    assert len(commands) >= 3
    there = {"serve": f"--port {port}", "query": f"--url http://127.0.0.1:{port}"}
    for command in commands:
        name = re.search(r"recipes/(\w+)\.py", command)[1]
        smaller = SMALLER[name].replace("--size tiny", "") if "--start" in command else SMALLER[name]
        call(f"{command} {smaller} {there.get(name, '')}")
    metrics = json.loads((here / "runs" / "books" / "metrics.json").read_text())
    assert {"held_out_masked_lm_loss", "held_out_next_sentence_accuracy", "baseline_masked_lm_loss"} <= set(metrics)
    assert (here / "saved_models" / "books" / "1" / "saved_model.pb").exists()
    tuned = here / "runs" / "mrpc"
    best = json.loads((tuned / "best.json").read_text())
    assert best.pop("run").startswith("rate-") and best == json.loads((tuned / "metrics.json").read_text())
    assert set(best) == {"dev_f1", "dev_accuracy"}
    assert len(list(tuned.glob("runs/*/metrics.json"))) == 1 and (tuned / "confusion_matrix.png").exists()
    assert (tuned / "MRPC.tsv").read_text().count("\n") == 6
    assert kbert.load(tuned)[0].labels == ["0", "1"]
    assert len((here / "vectors.jsonl").read_text().splitlines()) == 4
    served = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith('{"ids": ')]
    assert [len(answer["pieces"][0]) for answer in served] == [5, 5]
    assert len((here / "answers.jsonl").read_text().splitlines()) == 4
    if slow:
        of = {
            name: json.loads((here / "runs" / name / "metrics.json").read_text())
            for name in ("squad", "entities", "swag")
        }
        assert (
            set(of["squad"]) == {"exact_match", "f1"}
            and "dev_X_f1" in of["entities"]
            and set(of["swag"]) == {"dev_accuracy"}
        )
        answers = json.loads((here / "runs" / "squad" / "predictions.json").read_text())
        assert len(answers) == 12 and all(answers.values())


def test_pretraining_goes_on_from_a_trained_model_and_names_what_is_new(folder, start, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    trained, _ = kbert.load(start)
    command = FURTHER.replace("START", str(start)).replace("OUT", str(tmp_path / "further"))
    quick = command + " --optimizer.learning-rate 1e-9 --steps 2 --masking.max-predictions 2 --run.checkpoint-every 1"
    call(quick)
    said = capsys.readouterr().out
    assert "2 predictions a sequence cut off 60% of a full one's" in said
    new = said.partition("new, as the start has none: ")[2].split("\n")[0].split(", ")
    assert len(new) == 7 and {"masked_lm_bias", "next_sentence_dense/kernel"} <= set(new)
    further, _ = kbert.load(tmp_path / "further")
    for name in ("position_embeddings", "token_embeddings"):
        np.testing.assert_allclose(
            getattr(further.bert.embeddings, name), getattr(trained.bert.embeddings, name), atol=1e-5
        )
    (tmp_path / "further" / "checkpoints" / "step-00000002.safetensors").unlink()
    with pytest.raises(ValueError, match="--run.steps-per-call 2: 1 steps are left, which it does not divide"):
        call(quick + " --run.steps-per-call 2")
    with pytest.raises(ValueError, match="--size tiny: the start"):
        call(command + " --sequence-length 512 --size tiny")
    with pytest.raises(ValueError, match="do_lower_case is True, and lower_case False was asked for"):
        call(command + " --text.lower-case False")


@pytest.mark.long
def test_a_killed_run_ends_with_the_same_weights_to_the_bit_and_each_step_logged_once(folder):
    command = PRETRAIN + " --steps 12 --run.log-every 1"
    assert recipe(command.replace("OUT", "whole"), folder).returncode == 0
    words = shlex.split(command.replace("OUT", "killed"))
    process = subprocess.Popen(
        [sys.executable, ROOT / words[1], *words[2:]], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while not list((folder / "killed").glob("checkpoints/step-00000004.safetensors")):
        assert process.poll() is None, "the run ended before it could be killed"
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert recipe(command.replace("OUT", "killed"), folder).returncode == 0
    whole, killed = (
        load_file(folder / run / "checkpoints" / "step-00000012.safetensors") for run in ("whole", "killed")
    )
    assert whole.keys() == killed.keys()
    for name in whole:
        np.testing.assert_array_equal(whole[name], killed[name], name)
    logged = {run: events(folder / run / "logs") for run in ("whole", "killed")}
    assert logged["whole"].keys() == logged["killed"].keys()
    assert {len(values) for values in logged["killed"].values()} == {1}


OTHERWISE = "--seed 2 --optimizer.accumulation 2 --devices.precision bfloat16 --devices.recompute"


@pytest.mark.long
@pytest.mark.parametrize(("changes", "at_once"), [(OTHERWISE, True), ("", False)])
def test_workers_that_cannot_train_together_end_in_a_line_each(folder, changes, at_once):
    """With other settings before anything is read; after a kill as soon as the other is missed."""
    addresses = free_addresses(2)
    command = f"{PRETRAIN} --steps 100000 --strategy multi_worker --devices.workers {' '.join(addresses)}"
    words = shlex.split(command.replace("OUT", f"workers-{at_once}"))
    # Where JAX is installed Keras imports it here, and JAX sets the level of messages for processes begun here.
    shell = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": folder, "env": shell}
    started = [
        subprocess.Popen([sys.executable, ROOT / words[1], *words[2:], "--devices.worker", n, *extra], **pipes)
        for n, extra in (("0", []), ("1", shlex.split(changes)))
    ]
    try:
        if not at_once:
            next(line for line in started[0].stdout if "/100000" in line)
            started[1].kill()
        begin = time.perf_counter()
        told = [process.communicate(timeout=300)[1] for process in started]
        assert time.perf_counter() - begin < 300
    finally:
        for process in started:
            process.kill()
    if at_once:
        assert [process.returncode for process in started] == [2, 2]
        different = "accumulation is 1 and 2; precision is 'float32' and 'bfloat16'; recompute is False and True"
        expected = f"worker 1 were started with other settings: {different}; seed is 1 and 2\n"
        assert all(one.endswith(expected) for one in told), told
    else:
        assert started[0].returncode == 2 and "another worker is gone" in told[0] and told[0].count("\n") == 1, told


@pytest.mark.long
def test_ctrl_c_saves_and_says_how_to_go_on(folder):
    words = shlex.split(PRETRAIN.replace("OUT", "stopped") + " --steps 100000 --run.checkpoint-every 100000")
    process = subprocess.Popen(
        [sys.executable, ROOT / words[1], *words[2:]],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell that runs the tests in the background has them ignore Ctrl-C, and all that they start.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    for line in process.stdout:
        if "/100000" in line:
            break
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == os.EX_TEMPFAIL
    assert re.search(r"stopped after step \d+, saved in .*; the same command goes on from there", errors)
    assert list((folder / "stopped" / "checkpoints").glob("step-*.safetensors"))


def test_the_encoder_goes_to_every_format_and_back(folder, start, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    first = kbert.load(start)[0]
    # Google's format has always a pooler, and so has this start.
    for format in ("google", "keras_hub"):
        command = f"python recipes/convert_weights.py --input {start} --output {tmp_path / format} --to {format}"
        call(f"{command} --encoder-only --lower-case True")
        found = kbert.load(tmp_path / format)[0]
        for one, other in zip(found.bert.weights, first.bert.weights, strict=True):
            np.testing.assert_array_equal(one, other)
    model, tokenizer = kbert.load(start)
    alone = kbert.BertPretrainer(dataclasses.replace(model.config, pooler=False), next_sentence=False)
    kbert.save(alone, tokenizer, tmp_path / "alone")
    capsys.readouterr()
    for input, noted in ((tmp_path / "alone", True), (start, False)):
        output = tmp_path / f"huggingface {noted}"
        call(f"python recipes/convert_weights.py --input '{input}' --output '{output}' --to huggingface --encoder-only")
        assert ("this encoder has no pooler" in capsys.readouterr().out) == noted
    with pytest.raises(ValueError, match="do_lower_case is True, and lower_case False was asked for"):
        call(f"python recipes/convert_weights.py --input {start} --output new --lower-case False")


@pytest.mark.long
def test_a_run_whose_batches_another_process_makes_is_the_same_run(folder):
    command = f"{PRETRAIN} --steps 4"
    (address,) = free_addresses(1)
    # As what it helps may run on devices that it has not itself.
    devices = f"--strategy mirrored --run.serve-data {address.rpartition(':')[2]}"
    words = shlex.split(f"{command.replace('OUT', 'none')} {devices}")
    server = subprocess.Popen(
        [sys.executable, ROOT / words[1], *words[2:]], cwd=folder, stdout=subprocess.PIPE, text=True
    )
    try:
        next(line for line in server.stdout if "making batches for others" in line)
        done = recipe(f"{command.replace('OUT', 'helped')} --run.data-servers {address}", folder)
        assert done.returncode == 0 and "made here" not in done.stderr, done.stderr
    finally:
        server.kill()
    assert recipe(command.replace("OUT", "alone"), folder).returncode == 0
    name = "checkpoints/step-00000004.safetensors"
    alone, helped = (load_file(folder / run / name) for run in ("alone", "helped"))
    for name in alone:
        np.testing.assert_array_equal(alone[name], helped[name], name)
    assert not (folder / "none" / "run.json").exists()


@pytest.mark.long
@pytest.mark.parametrize("objectives", ["mlm", "left-to-right"])
def test_the_ablations_without_next_sentences_are_trained(folder, monkeypatch, objectives):
    monkeypatch.chdir(folder)
    output = f"ablation-{objectives}"
    call(f"{PRETRAIN.replace('OUT', output)} --objectives {objectives}")
    metrics = json.loads((folder / output / "metrics.json").read_text())
    assert "held_out_masked_lm_loss" in metrics and not [name for name in metrics if "next_sentence" in name]
    assert kbert.load(folder / output)[0].config.causal == (objectives == "left-to-right")


def test_a_recipe_that_stops_ends_the_quickstart_with_its_status(tmp_path, monkeypatch, capsys):
    quickstart = module_of("quickstart")
    monkeypatch.setattr(quickstart, "RECIPES", tmp_path)
    monkeypatch.setattr(sys, "argv", ["quickstart.py"])
    (tmp_path / "train.py").write_text("import sys\nsys.exit(75 if sys.argv[1:] == ['--steps', '3'] else 2)")
    with pytest.raises(SystemExit) as end:
        quickstart.call("train", {"steps": 3})
    assert end.value.code == 75 and "$ python recipes/train.py --steps 3\n" in capsys.readouterr().out


@pytest.mark.long
def test_the_quickstart_goes_from_installed_packages_to_filled_blanks_and_a_second_call_trains_nothing(folder):
    output, before = folder / "runs" / "quickstart", None
    for _ in range(2):
        done = recipe("python recipes/quickstart.py --steps 3", folder)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Blanks filled in" in done.stdout
        metrics = json.loads((output / "metrics.json").read_text())
        assert {"held_out_masked_lm_loss", "accuracy, pre-trained", "accuracy, from scratch"} <= set(metrics)
        trained = [*output.glob("*/checkpoints/*"), *output.glob("libraries-*/*.h5"), *output.glob("untrained/*")]
        times = {path: path.stat().st_mtime_ns for path in trained}
        assert len(trained) >= 7 and times == (before or times)
        before = times
    assert (folder / "saved_models" / "quickstart" / "1" / "saved_model.pb").exists()
