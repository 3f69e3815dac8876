"""What a recipe cannot do ends with status 2 and one line, before long work begins."""

import shutil
from pathlib import Path

import pytest
from small_corpus import VOCABULARY, text
from stranger import PRETRAIN, recipe, refuse

from kbert.training import distribution


@pytest.fixture
def bad_files(folder, monkeypatch):
    """A stranger's folder, with files in it that are no good; the files that are there, but for caches."""
    (folder / "empty").mkdir(exist_ok=True)
    (folder / "one.txt").write_text(text(1, 2_000))
    shutil.copytree(folder / "books" / "train", folder / "copies", dirs_exist_ok=True)
    (folder / "binary").write_bytes(b"ELF\0\1")
    (folder / "latin.txt").write_bytes("café. Next.".encode("latin-1"))
    (folder / "nomask.txt").write_text("\n".join(p for p in VOCABULARY if p != "[MASK]") + "\n")
    for name, letter in (("cased.txt", "A"), ("uncased.txt", "a")):
        (folder / name).write_text("\n".join([*VOCABULARY, letter]) + "\n")
    (folder / "other").mkdir(exist_ok=True)
    (folder / "other" / "run.json").write_text('{"seed": 9}')
    monkeypatch.chdir(folder)

    def files():
        return sorted(path for path in folder.rglob("*") if path.is_file() and "cache" not in path.parts)

    before = files()
    yield folder
    assert before == files(), "nothing is written or overwritten"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("--steps many", "many"),
        ("--strategy two", "two"),
        ("--batch-size 9 --strategy mirrored --devices.replicas 2", "--batch-size 9: 2 replicas x accumulation 1 does"),
    ],
)
def test_bad_input_ends_with_status_2_and_one_line(bad_files, change, message):
    done = recipe(PRETRAIN.replace("OUT", "refused") + " " + change, bad_files)
    assert done.returncode == 2, done.stdout + done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("pretrain.py: ") and message in lines[0], done.stderr


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("--corpus nowhere", "corpus nowhere: no such file, folder or glob match"),
        ("--corpus empty", "corpus empty: holds no files; expected text files"),
        ("--corpus one.txt --text.documents file", "one.txt: holds one document, so there is no other document"),
        ("--corpus binary", "binary: byte 3: a zero byte: the file is binary"),
        ("--corpus latin.txt", "latin.txt: byte 3: 0xe9 is not valid UTF-8"),
        ("--vocabulary nomask.txt", "[MASK]"),
        ("--vocabulary cased.txt", "--vocabulary cased.txt: it has capitals; expected --text.lower-case, False for"),
        (
            "--vocabulary uncased.txt --text.lower-case False",
            "uncased.txt has no capitals, and every word with one would be [UNK]",
        ),
        ("--held-out books/train", "books/train/0.txt is trained on too; expected text that --corpus does not have"),
        ("--held-out copies", "--held-out: copies is the text that is trained on; expected other"),
        ("--seed -1", "--seed -1: expected 0 to 4294967295"),
        ("--optimizer.learning-rate 0", "--optimizer.learning-rate 0.0: expected a number above 0"),
        ("--optimizer.warmup-steps 20", "--optimizer.warmup-steps 20: expected 0 to the steps, 4"),
        ("--optimizer.dropout 1", "--optimizer.dropout 1.0: expected a share, 0 or more and below 1"),
        ("--run.keep 0", "--run.keep 0: expected at least 1"),
        ("--run.log-every 0", "--run.log-every 0: expected at least 1"),
        ("--run.evaluation-instances 0", "--run.evaluation-instances 0: expected at least 1"),
        ("--optimizer.clip-norm -1", "--optimizer.clip-norm -1.0: expected a number above 0"),
        ("--sequence-length 7", "sequence_length 7; expected 8 to 512"),
        ("--sequence-length 513", "sequence_length 513; expected 8 to 512"),
        ("--batch-size 8 --optimizer.accumulation 3", "accumulation 3 does not divide it"),
        ("--strategy mirrored", "mirrored: there is no GPU; expected at least 2 replicas, parts of the CPU"),
        ("--devices.replicas 2", "replicas is 2; expected a number of parts of the CPU, at least 1; the strategy is"),
        ("--strategy multi_worker", "expected --devices.workers and --devices.worker, or TF_CONFIG"),
        ("--strategy multi_worker --devices.workers a:1", "--devices.worker None: expected both or none of them"),
        ("--devices.workers a:1 --devices.worker 0", "--devices.workers with --strategy one: expected --strategy mul"),
        ("--strategy multi_worker --devices.workers a:1 --devices.worker 1", "this is worker 1, expected 0 to 0"),
        ("--run.steps-per-call 3", "--steps 4: expected a multiple of --run.steps-per-call 3"),
        ("--start runs/books", "--vocabulary vocab.txt: the start runs/books brings its own"),
        ("--output other", "another run's settings: seed is 9 there and 1 now"),
        ("--output vocab.txt", "vocab.txt"),
    ],
)
def test_a_pretraining_that_cannot_be_is_refused_before_it_begins(bad_files, change, message):
    refuse("pretrain", f"{PRETRAIN.partition('.py ')[2].replace('OUT', 'refused')} {change}", message)


def test_a_folder_that_holds_something_is_not_written_into_and_a_format_without_a_place_is_refused(folder, monkeypatch):
    (folder / "full").mkdir(exist_ok=True)
    (folder / "full" / "a").touch()
    monkeypatch.chdir(folder)
    told = "--output full is there already and not empty; give another folder"
    refuse("convert_weights", "--input books --output full", told)
    refuse("convert_weights", "--input books --output new", "books/bert_config.json is missing, expected a model")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("--task mprc", "task 'mprc' is unknown; did you mean mrpc?"),
        ("--data glue", "glue/train.tsv is missing; expected the folder of a task"),
        ("--train own.csv", "--task mrpc and --train own.csv: expected one of them"),
        ("--sequence-length 600", "sequence_length 600; expected 8 to 512, the model's positions"),
        ("--batch-sizes 64", "--batch-sizes 64: there are 12 training examples"),
        ("--learning-rates 1e-4 1e-4", "--learning-rates 0.0001 0.0001: expected different numbers above 0"),
        ("--model books", "books/bert_config.json is missing"),
        ("--layers.frozen 2 --layers.reinitialized 1", "expected at most the model's 2 together"),
        ("--layers.dropout 1", "dropout is 1.0, expected 0 up to"),
        ("--layers.decay 0", "--layers.decay 0.0: expected a share above 0, up to 1"),
        ("--optimizer.warmup 2", "--optimizer.warmup 2.0: expected a share from 0 to 1"),
        ("--learning-rates inf", "--learning-rates inf: expected different numbers above 0"),
        ("--seed 4294967296", "--seed 4294967296: expected 0 to 4294967295"),
        ("--seed 4294967295 --restarts 2", "--seed 4294967295 and --restarts 2: expected seeds up to 4294967295"),
        ("--restarts 0", "--restarts 0: expected at least 1"),
        ("--optimizer.clip-norm 0", "--optimizer.clip-norm 0.0: expected a number above 0"),
        ("--optimizer.weight-decay -1", "--optimizer.weight-decay -1.0: expected a number, 0 or more"),
        ("--optimizer.accumulation 0", "--optimizer.accumulation 0: expected at least 1"),
        ("--reading.kind labels", "--reading.kind labels: the task mrpc brings its own"),
    ],
)
def test_fine_tuning_that_cannot_be_is_refused_before_it_begins(folder, start, monkeypatch, change, message):
    monkeypatch.chdir(folder)
    command = f"--model {start} --task mrpc --data glue/MRPC --batch-sizes 4 --output not_tuned {change}"
    refuse("fine_tune_glue", command, message)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("--version 1.1 --dev v2.json", "v2.json, question none has no answer; expected one, as in version 1.1"),
        ("--train v2.json", "v2.json, question none has no answer; expected one, as in version 1.1"),
        ("--train moved.json", "moved.json, question 0-0: its answer is not where it is said to be, nor any other's"),
        ("--null-odds odds.json", "--null-odds odds.json: expected --predictions beside it"),
        ("--predictions right.json", "--predictions right.json is scored alone; expected one of them"),
        ("--optimizer.accumulation 0", "--optimizer.accumulation 0: expected at least 1"),
        ("--windows.stride 4", "stride is 4, expected 8 to sequence_length"),
        ("--windows.sequence-length 600", "sequence_length 600; expected 8 to 512, the model's positions"),
        ("--answers.longest 0", "--answers.longest 0: expected at least 1"),
        (
            "--windows.sequence-length 80 --windows.stride 8 --batch-sizes 999",
            "--batch-sizes 999: there are 73 training examples",
        ),
        ("--answers.threshold 0", "--answers.threshold 0.0: version 1.1 has an answer to every question"),
    ],
)
def test_what_no_answers_can_be_learned_from_is_refused(folder, start, monkeypatch, change, message):
    monkeypatch.chdir(folder)
    refuse(
        "fine_tune_squad",
        f"--model {start} --train train-v1.1.json --dev dev-v1.1.json --batch-sizes 4 --output not_tuned {change}",
        message,
    )


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "fine_tune_ner",
            "--dev iob1.conll",
            "iob1.conll, line 2: I-X between O and its end is no IOB2; expected scheme IOB1",
        ),
        (
            "fine_tune_ner",
            "--reading.tag 2",
            "train.conll, line 3: 'Don O' has 2 columns; expected at least 3, not empty",
        ),
        ("fine_tune_ner", "--features.lstm-layers 1", "--features is what a BiLSTM reads; expected --head bilstm"),
        (
            "fine_tune_ner",
            "--head bilstm --features.layers 3",
            "layer 3 is not there, expected 0 (the embeddings) to 2",
        ),
        (
            "fine_tune_ner",
            "--head bilstm --layers.reinitialized 1",
            "--layers: the BERT that a BiLSTM reads does not learn; expected --features.no-frozen too",
        ),
        ("fine_tune_ner", "--output .", "train.conll is an input and would be replaced; give another --output"),
        ("extract_features", "--input lines.jsonl --output lines.jsonl", "lines.jsonl is an input and would be repla"),
        ("extract_features", "--output nowhere/v.tfrecord", "--output nowhere/v.tfrecord: there is no such folder"),
        ("fine_tune_swag", "--dev uneven.tsv", "uneven.tsv, line 2: 1 endings; expected 2, as in the first row"),
        ("fine_tune_swag", "--batch-sizes 16", "--batch-sizes 16: there are 8 training examples"),
        ("extract_features", "--layers 3", "layer 3 is not there, expected 0 (the embeddings) to 2, or -2 to -1"),
        ("extract_features", "--output v.txt", "--output v.txt: expected a file that ends in .jsonl, .npz, .tfrecord"),
        (
            "extract_features",
            "--weights 1",
            "weights is (1.0,) and mix none, expected weights for a weighted_sum alone",
        ),
        (
            "extract_features",
            "--layers 1 --mix weighted_sum --weights 1 2",
            "weights has 2 numbers, expected one for",
        ),
        ("extract_features", "--input nowhere.txt", "No such file or directory: nowhere.txt"),
    ],
)
def test_what_these_recipes_cannot_do_is_refused(folder, start, monkeypatch, name, change, message):
    monkeypatch.chdir(folder)
    files = {
        "fine_tune_ner": "--train train.conll --dev dev.conll --output not_tuned --batch-sizes 4",
        "fine_tune_swag": "--train train.csv --dev val.csv --output not_tuned --batch-sizes 4",
        "extract_features": "--input lines.txt --output not_tuned.npz --layers 1",
    }
    refuse(name, f"--model {start} {files[name]} {change}", message)
    assert not Path("not_tuned.npz").exists()


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("fine_tune_glue", "--task mrpc --data glue/MRPC"),
        ("fine_tune_squad", "--train train-v1.1.json --dev dev-v1.1.json"),
        ("fine_tune_ner", "--train train.conll --dev dev.conll"),
        ("fine_tune_swag", "--train train.csv --dev val.csv"),
    ],
)
def test_workers_that_would_not_fine_tune_alike_are_refused(folder, start, monkeypatch, name, files):
    monkeypatch.chdir(folder)
    other = {"accumulation": 4, "precision": "bfloat16", "recompute": True}
    monkeypatch.setattr(distribution, "workers", lambda strategy: 2)
    monkeypatch.setattr(distribution, "is_chief", lambda strategy: True)
    monkeypatch.setattr(distribution, "exchanged", lambda strategy, mine: [mine, mine | other])
    told = "accumulation is 1 and 4; precision is 'float32' and 'bfloat16'; recompute is False and True"
    refuse(name, f"--model {start} {files} --batch-sizes 4 --output not_tuned", f"with other settings: {told}")


def test_vectors_of_a_pipe_go_to_what_needs_no_count(folder, start, monkeypatch):
    monkeypatch.chdir(folder)
    refuse(
        "extract_features",
        f"--model {start} --input /dev/null --output not_tuned.npz",
        "/dev/null is no file whose lines can be counted; expected .tfrecord or .jsonl",
    )


@pytest.mark.parametrize("change", ["--name a/b", "--steps 0", "--epochs 0", "--seed -1"])
def test_a_journey_that_would_end_on_the_way_is_refused(folder, monkeypatch, change):
    monkeypatch.chdir(folder)
    refuse("quickstart", f"--output journey {change}", change.split()[0])
    assert not Path("journey").exists()


def test_more_texts_than_a_list_of_contents_should_hold_are_refused(folder, start, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setattr("kbert.tasks.vectors.MOST_ARRAYS", 3)
    refuse(
        "extract_features",
        f"--model {start} --input lines.txt --output not_tuned.npz",
        "lines.txt has 4 lines, an .npz has at most 3 texts; expected .tfrecord or .jsonl",
    )


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--models nowhere", "--models nowhere: no such folder; expected one that export.py has written to"),
        ("--models . --batch.rows 0", "--batch.rows 0: expected 1 or more"),
        ("--models . --batch.wait-ms -1", "--batch.wait-ms -1: expected 0 or more"),
        ("--models . --seconds 0", "--seconds 0: expected a number above 0"),
        ("--models . --host 192.0.2.1", "--host 192.0.2.1 --port 8501: "),
        ("--models . --port 99999", "--port 99999: expected 1 to 65535"),
    ],
)
def test_a_server_that_cannot_be_is_refused(folder, monkeypatch, flags, message):
    monkeypatch.chdir(folder)
    refuse("serve", flags, message)
