"""GLUE's own files are read with their quirks, scored as its tasks are, and answered in its server's format."""

import numpy as np
import pytest

from kbert.tasks import glue
from kbert.tasks.examples import Example

# The first lines of each kind of file, as GLUE gives them, with other texts.
FILES = {
    "CoLA/train.tsv": "gj04\t1\t\tThe rope holds.\ngj04\t0\t*\tHolds rope the.\n",
    "CoLA/dev.tsv": "gj04\t1\t\tA boat.\n",
    "CoLA/test.tsv": "index\tsentence\n0\tIt is.\n1\tIs it.\n",
    "SST-2/train.tsv": "sentence\tlabel\ngood \t1\nbad \t0\n",
    "MRPC/train.tsv": '\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t7\t8\tHe said , " a .\tHe said .\n',
    "MRPC/test.tsv": "index\t#1 ID\t#2 ID\t#1 String\t#2 String\n0\t7\t8\tx\ty\n",
    "STS-B/train.tsv": "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n"
    "0\tcaptions\tm\t2012\t1\tnone\tnone\tA plane.\tA jet.\t4.250\n",
    "QQP/train.tsv": "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n1\t2\t3\tWhat?\tWhich?\t0\n",
    "MNLI/train.tsv": "index\tpromptID\tpairID\tgenre\ta\tb\tc\td\tsentence1\tsentence2\tlabel1\tgold_label\n"
    "0\t1\t1n\tfiction\t(\t(\t(\t(\tHe ran.\tHe moved.\tentailment\tentailment\n",
    "MNLI/dev_matched.tsv": "sentence1\tsentence2\tgold_label\na\tb\tneutral\n",
    "MNLI/dev_mismatched.tsv": "sentence1\tsentence2\tgold_label\nc\td\tcontradiction\n",
    "MNLI/test_matched.tsv": "index\tsentence1\tsentence2\n0\te\tf\n",
    "diagnostic/diagnostic.tsv": "index\tsentence1\tsentence2\n0\tg\th\n",
    "QNLI/train.tsv": "index\tquestion\tsentence\tlabel\n0\tWho?\tShe.\tentailment\n",
    "RTE/train.tsv": "index\tsentence1\tsentence2\tlabel\n0\ta\tb\tnot_entailment\n",
    "WNLI/train.tsv": "index\tsentence1\tsentence2\tlabel\n0\ta\tb\t1\n",
}


@pytest.fixture
def folder(tmp_path):
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content, encoding="utf-8")
    return tmp_path


def texts(examples: list[Example]) -> list[tuple]:
    return [(example.text_a, example.text_b, example.label) for example in examples]


def test_every_tasks_training_file_is_read(folder):
    first = {name: texts(glue.train_examples(task, folder / task.folder))[0] for name, task in glue.TASKS.items()}
    assert first == {
        "cola": ("The rope holds.", None, "1"),
        "sst-2": ("good ", None, "1"),
        "mrpc": ('He said , " a .', "He said .", "1"),
        "sts-b": ("A plane.", "A jet.", "4.250"),
        "qqp": ("What?", "Which?", "0"),
        "mnli": ("He ran.", "He moved.", "entailment"),
        "qnli": ("Who?", "She.", "entailment"),
        "rte": ("a", "b", "not_entailment"),
        "wnli": ("a", "b", "1"),
    }
    for name, task in glue.TASKS.items():
        assert not task.labels or first[name][2] in task.labels


def test_mnli_has_two_dev_sets_and_the_diagnostic_set_goes_with_it(folder):
    task = glue.task_named("MNLI")
    dev = glue.dev_examples(task, folder / "MNLI")
    assert {name: texts(examples) for name, examples in dev.items()} == {
        "dev_matched": [("a", "b", "neutral")],
        "dev_mismatched": [("c", "d", "contradiction")],
    }
    test = glue.test_examples(task, folder / "MNLI")
    assert {name: texts(examples) for name, examples in test.items()} == {
        "MNLI-m": [("e", "f", None)],
        "AX": [("g", "h", None)],
    }


def test_colas_test_file_has_a_header_where_the_others_have_none(folder):
    task = glue.task_named("cola")
    assert texts(glue.dev_examples(task, folder / "CoLA")["dev"]) == [("A boat.", None, "1")]
    assert texts(glue.test_examples(task, folder / "CoLA")["CoLA"]) == [("It is.", None, None), ("Is it.", None, None)]
    assert texts(glue.test_examples(glue.task_named("mrpc"), folder / "MRPC")["MRPC"]) == [("x", "y", None)]


def test_incomplete_rows_of_qqp_are_left_out_and_of_others_refused(folder):
    for name in ("QQP", "RTE"):
        path = folder / name / "train.tsv"
        path.write_text(path.read_text() + "2\t3\n")
    left_out = []
    assert len(glue.train_examples(glue.task_named("qqp"), folder / "QQP", left_out)) == 1
    assert left_out == [f"{folder}/QQP/train.tsv, line 3"]
    with pytest.raises(ValueError, match="RTE/train.tsv, line 3: no column 'sentence2'"):
        glue.train_examples(glue.task_named("rte"), folder / "RTE", left_out)
    with open(folder / "CoLA" / "train.tsv", "a") as file:
        file.write("gj04\t1\n")
    with pytest.raises(ValueError, match=r"CoLA/train.tsv, line \d: 2 columns, expected at least 4"):
        glue.train_examples(glue.task_named("cola"), folder / "CoLA")


def test_a_missing_file_and_a_misspelled_task_are_named(folder):
    with pytest.raises(FileNotFoundError, match="SST-2/dev.tsv is missing; expected the folder of a task"):
        glue.dev_examples(glue.task_named("sst-2"), folder / "SST-2")
    with pytest.raises(ValueError, match="task 'sst2' is unknown; did you mean sst-2?"):
        glue.task_named("sst2")


def test_scores_are_those_of_the_definitions():
    truth, answer = np.array([1, 1, 1, 0, 0]), np.array([1, 1, 0, 1, 0])
    found = glue.scores(("accuracy", "f1", "matthews_correlation"), truth, answer)
    # 2 true positives, 1 false positive, 1 false negative, 1 true negative
    assert found == pytest.approx({"accuracy": 3 / 5, "f1": 2 / 3, "matthews_correlation": 1 / 6})
    truth, answer = np.array([0.0, 1.0, 2.0, 3.0]), np.array([0.0, 2.0, 1.0, 30.0])
    assert glue.scores(("spearman",), truth, answer)["spearman"] == pytest.approx(0.8)
    assert glue.scores(("pearson", "spearman"), truth, np.ones(4)) == {"pearson": 0.0, "spearman": 0.0}


def test_answers_are_written_as_glues_server_takes_them():
    rte, sts = glue.task_named("rte"), glue.task_named("sts-b")
    named = ["not_entailment", "entailment"]
    assert glue.submission(rte, named) == "index\tprediction\n0\tnot_entailment\n1\tentailment\n"
    assert glue.submission(sts, ["-0.2", "5.7", "2.34567"]) == "index\tprediction\n0\t0.000\n1\t5.000\n2\t2.346\n"
