import numpy as np
import pytest
from google.protobuf import text_format
from tensorboard.plugins.projector import ProjectorConfig

from kbert.training import checkpointing
from kbert.training.checkpointing import Checkpoint
from kbert.training.monitoring import Evaluate, EventFiles, Monitor, Panels, escaped, guesses
from tests.training.logged import TIMES, events
from tests.training.tiny_run import VOCABULARY, batch, dataset, digest


def fit(model, steps, *callbacks):
    model.fit(dataset(), steps_per_epoch=steps, callbacks=list(callbacks), shuffle=False, verbose=0)


def test_of_several_processes_one_alone_removes_and_writes_event_files(model, tmp_path, monkeypatch):
    (tmp_path / "logs" / "held_out").mkdir(parents=True)
    of_the_other = tmp_path / "logs" / "held_out" / "events.out.tfevents.1.from-step-00000000"
    of_the_other.touch()
    monkeypatch.setattr(checkpointing, "is_chief", lambda strategy: False)
    checkpoint = Checkpoint(tmp_path, {})
    checkpoint.restore(model)
    EventFiles(tmp_path / "logs", checkpoint).text("train", 0, "settings", "none")
    assert [path for path in (tmp_path / "logs").rglob("*") if path.is_file()] == [of_the_other]


def test_what_is_logged_is_the_mean_over_the_steps_since_the_last_log(model, tmp_path):
    beginning = [(variable, variable.numpy()) for variable in model.variables + model.optimizer.variables]
    files = EventFiles(tmp_path / "each", Checkpoint(tmp_path, {}))
    fit(model, 5, Monitor(files, {}, every=1))
    for variable, value in beginning:
        variable.assign(value)
    fit(model, 5, Monitor(EventFiles(tmp_path / "third", Checkpoint(tmp_path, {})), {}, every=3))
    each, third = events(tmp_path / "each"), events(tmp_path / "third")

    def mean(tag, steps, weights):
        values = [each["train", tag, step][0] for step in steps]
        return pytest.approx(np.average(values, weights=weights), rel=1e-5)

    predicted = [batch(number)["masked_lm_weights"].sum() for number in range(5)]
    padding = [1 - batch(number)["input_mask"].mean() for number in range(5)]
    for step, steps in {3: [1, 2, 3], 5: [4, 5]}.items():
        weights = [predicted[number - 1] for number in steps]
        assert third["train", "learning/masked_lm_loss", step] == [mean("learning/masked_lm_loss", steps, weights)]
        assert third["train", "optimization/gradient_norm", step] == [mean("optimization/gradient_norm", steps, None)]
        expected = pytest.approx(np.mean([padding[number - 1] for number in steps]), rel=1e-5)
        assert third["train", "throughput/share_of_padding", step] == [expected]
        # The rate of the next update, which rises up to step 5.
        rate = 1e-2 * step / 5
        assert third["train", "optimization/learning_rate", step] == [pytest.approx(rate, rel=1e-5)]
    assert 0 <= third["train", "throughput/share_of_time_waiting", 3][0] < 1
    assert third["train", "throughput/real_tokens_per_second", 3][0] > 0


def test_evaluating_disturbs_neither_training_nor_its_logs(model, tmp_path):
    beginning = [(variable, variable.numpy()) for variable in model.variables + model.optimizer.variables]
    alone, watched = (EventFiles(tmp_path / name, Checkpoint(tmp_path, {})) for name in ("alone", "watched"))
    fit(model, 5, Monitor(alone, {}, every=3))
    expected = digest(model, "seconds")
    for variable, value in beginning:
        variable.assign(value)
    evaluate = Evaluate(dataset(500, 503), watched, every=2, baselines={"masked_lm_loss": 3.25})
    fit(model, 5, Monitor(watched, {}, every=3), evaluate)
    assert digest(model, "seconds") == expected

    logged, expected = events(tmp_path / "watched"), events(tmp_path / "alone")
    for (run, tag, step), values in expected.items():
        assert tag in TIMES or logged[run, tag, step] == values, (run, tag, step)
    assert evaluate.values == model.evaluate(dataset(500, 503), verbose=0, return_dict=True)
    assert logged["held_out", "learning/masked_lm_loss", 5] == [pytest.approx(evaluate.values["masked_lm_loss"])]
    for step in (2, 4, 5):
        assert logged["baseline", "learning/masked_lm_loss", step] == [3.25]


def test_a_run_writes_its_settings_once(model, tmp_path):
    fit(model, 1, Monitor(EventFiles(tmp_path / "logs", Checkpoint(tmp_path, {})), {"size": "tiny", "a_b": 1}))
    fit(model, 1, Monitor(EventFiles(tmp_path / "more", Checkpoint(tmp_path, {})), {"size": "tiny", "a_b": 1}))
    text = events(tmp_path / "logs")["train", "settings", 0][0].decode()
    assert text == "| setting | value |\n| --- | --- |\n| size | tiny |\n| a\\_b | 1 |"
    assert ("train", "settings", 0) not in events(tmp_path / "more")


def test_guesses_show_the_sentence_its_masks_and_the_best_pieces():
    vocabulary = ["[PAD]", "[CLS]", "[SEP]", "[MASK]", "the", "dog", "##s", "ran", "|"]
    features = {
        "input_ids": np.array([1, 4, 3, 6, 7, 2, 0]),
        "input_mask": np.array([1, 1, 1, 1, 1, 1, 0]),
        "masked_lm_positions": np.array([2, 4, 0]),
        "masked_lm_ids": np.array([5, 7, 0]),
        "masked_lm_weights": np.array([1.0, 1.0, 0.0]),
    }
    probabilities = np.array([[0, 0, 0, 0, 0.25, 0.5, 0, 0.125, 0.125], [0, 0, 0, 0, 0.5, 0, 0, 0.125, 0.375], [1] * 9])
    assert guesses(features, probabilities, vocabulary, best=2) == (
        r"\[CLS\] the **\[MASK\]**₁s **ran**₂ \[SEP\]"
        "\n\n| mask | seen | truth | its rank | guess 1 | guess 2 |\n| --- | --- | --- | --- | --- | --- |\n"
        r"| 1 | \[MASK\] | dog | 1 | dog 50\.0% | the 25\.0% |"
        "\n"
        r"| 2 | ran | ran | 3 | the 50\.0% | \| 37\.5% |"
    )


def test_panels_show_held_out_guesses_and_all_embeddings(model, tmp_path):
    panels = Panels(batch(7), VOCABULARY, EventFiles(tmp_path, Checkpoint(tmp_path, {})), every=2, sentences=2)
    fit(model, 3, panels)
    written = events(tmp_path)
    assert list(written) == [("held_out", "guesses", 2), ("held_out", "guesses", 3)]
    assert written["held_out", "guesses", 3][0].decode().count("| mask |") == 2

    config = text_format.Parse((tmp_path / "train" / "projector_config.pbtxt").read_text(), ProjectorConfig())
    [embedding] = config.embeddings
    vectors = np.fromfile(tmp_path / "train" / embedding.tensor_path, "<f4").reshape(embedding.tensor_shape)
    np.testing.assert_array_equal(vectors, model.bert.embeddings.token_embeddings.numpy())
    assert (tmp_path / "train" / embedding.metadata_path).read_text().split("\n") == [*VOCABULARY, ""]


def test_text_means_itself_in_markdown():
    assert escaped("a*b_<c>|&`[x]") == r"a\*b\_&lt;c&gt;\|&amp;\`\[x\]"
