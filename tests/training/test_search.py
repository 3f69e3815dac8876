"""A search goes on where it was stopped, keeps the best run's model, and a finished one does no work."""

import json
import shutil
from unittest.mock import Mock

import numpy as np
import pytest
import tensorflow as tf

from kbert import lanes
from kbert.fine_tuning import LayerRule, OptimizerRule, new_search
from kbert.training import pieces
from kbert.training.search import Search, Trial
from tests.training import tiny_run

TRIALS = [Trial(1e-2, 4, 1), Trial(1e-2, 4, 1, restart=1), Trial(1e-3, 4, 2)]
BATCHES = 5


class Stop(Exception):
    pass


class Searched:
    """A search on the tiny pre-training task, and what was asked of it."""

    def __init__(self, output, stop_at=None, **options):
        self.asked, self.saved, self.stop_at = [], [], stop_at
        self.models = 0
        self.search = Search(
            output,
            {"start": "tiny"},
            self.new_model,
            self.batches,
            self.score,
            lambda model: self.saved.append(self.weights(model)),
            best_by="dev_score",
            optimizer={"bias_correction": True},
            **options,
        )

    def new_model(self):
        self.models += 1
        return tiny_run.BertPretrainer(tiny_run.new_model().config)

    def batches(self, trial, seed, begin):
        self.asked.append((trial.setting, seed, begin))
        count = BATCHES * trial.epochs

        def make():
            for number in range(begin, count):
                if (trial.restart, number) == self.stop_at:
                    raise Stop
                yield tiny_run.batch(1000 * seed + number)

        spec = {name: tf.TensorSpec(value.shape, value.dtype) for name, value in tiny_run.batch(0).items()}
        dataset = tf.data.Dataset.from_generator(make, output_signature=spec)
        return dataset.apply(tf.data.experimental.assert_cardinality(count - begin))

    @staticmethod
    def weights(model):
        return model.bert.embeddings.token_embeddings.numpy()

    def score(self, model):
        assert model.lanes == 2
        return {"dev_score": float(np.abs(self.weights(model)).sum())}


@pytest.fixture(scope="module", autouse=True)
def in_lanes():
    """As where fine-tuning begins on two cores."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lanes, "there_are", lambda: 2)
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    searched = Searched(tmp_path_factory.mktemp("whole"))
    searched.results = searched.search.results(TRIALS, show=lambda line: None)
    return searched


def test_each_trial_has_its_own_numbers_and_the_best_is_kept(whole):
    values = [whole.results[trial]["dev_score"] for trial in TRIALS]
    assert len(set(values)) == 3
    assert float(np.abs(whole.saved[-1]).sum()) == max(values) == whole.search.best()["dev_score"]
    assert whole.search.best()["run"] == TRIALS[int(np.argmax(values))].name
    assert [seed for _, seed, _ in whole.asked] == [1, 2, 1]
    assert not list(whole.search.output.glob("runs/*/checkpoints"))
    assert {path.name for path in (whole.search.output / "logs").iterdir()} == {trial.name for trial in TRIALS}


def test_a_finished_search_does_no_work(whole):
    again = Searched(whole.search.output)
    assert again.search.results(TRIALS, show=lambda line: None) == whole.results
    assert (again.models, again.asked, again.saved) == (0, [], [])


@pytest.mark.parametrize("damaged", [pytest.param(False, marks=pytest.mark.long), True])
def test_a_stopped_search_goes_on_and_ends_the_same(whole, tmp_path, damaged):
    stopped = Searched(tmp_path, stop_at=(1, 3))
    with pytest.raises(Exception, match="Stop"):
        stopped.search.results(TRIALS, show=lambda line: None)
    if damaged:  # the newest checkpoint; the one before it is there
        newest = max(tmp_path.glob("runs/*/checkpoints/*"))
        newest.write_bytes(newest.read_bytes()[:-1])
    goes_on = Searched(tmp_path)
    assert goes_on.search.results(TRIALS, show=lambda line: None) == whole.results
    assert [(seed, begin) for _, seed, begin in goes_on.asked] == [(2, 0), (2, 2 if damaged else 3), (1, 0)]
    np.testing.assert_array_equal((stopped.saved + goes_on.saved)[-1], whole.saved[-1])


def test_a_search_of_other_trials_keeps_a_better_model_of_before(whole, tmp_path):
    shutil.copytree(whole.search.output, tmp_path / "copy")
    (tmp_path / "copy" / "best.json").write_text(json.dumps({"run": "other", "dev_score": 1e9}))
    later = Searched(tmp_path / "copy")
    later.search.results([Trial(5e-3, 4, 1)], show=lambda line: None)
    assert later.saved == [] and later.search.best() == {"run": "other", "dev_score": 1e9}


def test_of_runs_that_are_equal_the_first_is_kept_and_leftovers_of_a_kill_go(tmp_path):
    searched = Searched(tmp_path)
    searched.search.score = lambda model: {"dev_score": 1.0}
    leftover = tmp_path / "runs" / TRIALS[0].name / "checkpoints"
    results = searched.search.results(TRIALS[:2], show=lambda line: leftover.mkdir(parents=True, exist_ok=True))
    assert results == dict.fromkeys(TRIALS[:2], {"dev_score": 1.0})
    assert len(searched.saved) == 1 and searched.search.best()["run"] == TRIALS[0].name
    leftover.mkdir(exist_ok=True)
    searched.search.results(TRIALS[:2], show=lambda line: None)
    assert not leftover.exists()


@pytest.mark.parametrize("xla", [False, True])
def test_the_rules_of_a_recipe_reach_the_model(tmp_path, xla):
    model = tiny_run.BertPretrainer(tiny_run.new_model().config)
    model.fit = Mock(side_effect=Stop)
    rule = OptimizerRule(xla=xla, accumulation=2, warmup=0.5, clip_norm=0.25, weight_decay=0.125, bias_correction=False)
    given = {"settings": {"seed": 1}, "new_model": lambda: model, "score": None, "save": None, "best_by": "score"}
    search = new_search(tmp_path, [], LayerRule(decay=0.5), rule, **given)
    search.batches = lambda trial, seed, begin: range(BATCHES * trial.epochs)
    with pytest.raises(Stop):
        search.results([Trial(1e-2, 4, 2)], show=lambda line: None)
    config = model.optimizer.get_config()
    asked = {"clip_norm": 0.25, "weight_decay": 0.125, "bias_correction": False, "layer_decay": 0.5}
    assert (model.bert.piece is not pieces.uncompiled_piece, model.accumulation) == (xla, 2)
    assert {name: config[name] for name in asked} == asked
    assert config["learning_rate"]["config"] == {"peak": 1e-2, "steps": 10, "warmup_steps": 5}


@pytest.mark.parametrize(("steps", "every"), [(2, 1), (10, 2), (342, 85), (1000, 250), (8000, 250)])
def test_a_run_has_four_checkpoints_or_one_every_250_steps(tmp_path, monkeypatch, steps, every):
    searched, asked = Searched(tmp_path), Mock(side_effect=Stop)
    monkeypatch.setattr("kbert.training.search.Checkpoint", asked)
    searched.search.batches = lambda trial, seed, begin: range(steps)
    with pytest.raises(Stop):
        searched.search.results(TRIALS[:1], show=lambda line: None)
    assert asked.call_args.kwargs["every"] == every
