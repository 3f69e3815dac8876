"""Who may import whom: the walls of the house (text, model, training, ...) hold, and `import kbert` stays light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import kbert

REPOSITORY = Path(__file__).parent.parent
MODULES = sorted((REPOSITORY / "kbert").rglob("*.py"))
RECIPES = sorted((REPOSITORY / "recipes").glob("*.py"))

# What modules whose names begin with the left side may import of kbert; the longest left side that fits counts.
ALLOWED = {
    "kbert": ["kbert.environment"],  # its public names load lazily
    "kbert.environment": [],
    "kbert.lanes": ["kbert.environment"],
    "kbert.command_line": [],
    "kbert.whole_file": [],
    "kbert.config": ["kbert.whole_file"],
    "kbert.report": ["kbert.whole_file"],
    "kbert.devices": ["kbert.lanes", "kbert.training.distribution", "kbert.report"],
    "kbert.fine_tuning": [
        "kbert.devices",
        "kbert.lanes",
        "kbert.model",
        "kbert.model_directory",
        "kbert.weights",
        "kbert.tasks",
        "kbert.training",
        "kbert.report",
    ],
    "kbert.text": ["kbert.text"],
    "kbert.model": ["kbert.model", "kbert.config", "kbert.training.metrics"],
    "kbert.model.base": ["kbert.training.step"],  # the one place where the TensorFlow step is mixed in
    "kbert.training": [
        "kbert.training",
        "kbert.model",
        "kbert.config",
        "kbert.whole_file",
        "kbert.environment",
        "kbert.lanes",
    ],
    "kbert.training.step": ["kbert.training", "kbert.lanes"],  # the models are built on it
    "kbert.tasks": ["kbert.tasks", "kbert.text", "kbert.whole_file", "kbert.lanes"],
    "kbert.weights": ["kbert.weights", "kbert.config", "kbert.model", "kbert.text.wordpiece", "kbert.whole_file"],
    "kbert.serving": ["kbert.serving", "kbert.text", "kbert.environment"],
    "kbert.serving.export": ["kbert.serving", "kbert.model.kernels"],
    "kbert.serving.answers": ["kbert.whole_file"],
    "kbert.model_directory": ["kbert.config", "kbert.text", "kbert.model", "kbert.weights", "kbert.whole_file"],
    "kbert.benchmark": [
        "kbert.environment",
        "kbert.lanes",
        "kbert.benchmark",
        "kbert.config",
        "kbert.text",
        "kbert.tasks",
        "kbert.model",
        "kbert.model_directory",
        "kbert.training",
        "kbert.weights",
        "kbert.report",
        "kbert.serving.litert",
    ],
    "kbert.benchmark.systems": ["kbert"],  # each is a program of its own, which uses kbert as its users do
}
FRAMEWORKS = {"tensorflow", "tensorflow_text", "keras", "keras_hub", "keras_nlp", "jax", "torch"}
# The frameworks that each may import; "kbert" itself, its config and the command line start without any.
ALLOWED_FRAMEWORKS = {
    "kbert": set(),
    "kbert.environment": set(),
    "kbert.lanes": {"tensorflow"},
    "kbert.command_line": set(),
    "kbert.whole_file": set(),
    "kbert.report": set(),
    "kbert.devices": {"keras"},
    "kbert.fine_tuning": set(),
    "kbert.config": set(),
    "kbert.text": {"tensorflow", "tensorflow_text"},
    "kbert.model": {"keras"},
    "kbert.model.gpu": {"keras", "jax"},
    "kbert.training": {"keras", "tensorflow"},
    "kbert.training.optimization": {"keras", "tensorflow"},  # a kernel of TensorFlow's, on its own backend
    "kbert.tasks": {"tensorflow"},
    "kbert.weights": {"keras", "tensorflow"},
    "kbert.weights.keras_hub": {"keras", "keras_hub"},
    "kbert.weights.huggingface": {"keras", "torch"},  # only to read pytorch_model.bin, where it is installed
    "kbert.serving": {"keras", "tensorflow", "tensorflow_text"},
    # A client answers at once.
    **dict.fromkeys(("kbert.serving.client", "kbert.serving.over_rest", "kbert.serving.lines"), set()),
    **dict.fromkeys(("kbert.serving.asking", "kbert.serving.answers", "kbert.serving.rest"), set()),
    "kbert.model_directory": {"keras"},
    "kbert.benchmark": set(),
    "kbert.benchmark.systems": FRAMEWORKS,
}


def name_of(file: Path) -> str:
    return ".".join(file.relative_to(REPOSITORY).with_suffix("").parts)


def rule_for(table: dict, module: str):
    fitting = [key for key in table if f"{module}.".startswith(f"{key}.")]
    assert fitting, f"{module} is in no row of the table"
    return table[max(fitting, key=len)]


def imported(source: str) -> set[str]:
    """Every module that the source names in an import, also inside functions; `from a import b` counts as a.b."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def within(name: str, packages) -> bool:
    return any(f"{name}.".startswith(f"{package}.") for package in packages)


def violations(module: str, source: str) -> list[str]:
    names = imported(source)
    frameworks = FRAMEWORKS - rule_for(ALLOWED_FRAMEWORKS, module)
    allowed = rule_for(ALLOWED, module)
    wrong = [name for name in names if within(name, ["kbert"]) and not within(name, allowed)]
    wrong += [name for name in names if within(name, [*frameworks, "recipes", "tests"])]
    return sorted(wrong)


@pytest.mark.parametrize("file", MODULES, ids=name_of)
def test_a_module_imports_only_what_the_design_allows(file):
    assert violations(name_of(file), file.read_text()) == []


@pytest.mark.parametrize("file", RECIPES, ids=name_of)
def test_a_recipe_imports_no_other_recipe_and_no_test(file):
    others = [recipe.stem for recipe in RECIPES] + ["recipes", "tests"]
    assert not [name for name in imported(file.read_text()) if within(name, others)]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("kbert.text.packing", "from kbert.model.bert import Bert"),
        ("kbert.text.packing", "import keras"),
        ("kbert.model.bert", "def f():\n    import tensorflow as tf"),
        ("kbert.model.bert", "from kbert.training import step"),
        ("kbert.training.step", "import kbert.model"),
        ("kbert.weights.google", "from kbert.text import packing"),
        ("kbert.serving.export", "from kbert import model_directory"),
        ("kbert.config", "from kbert import BertConfig"),
        ("kbert.tasks.glue", "from recipes import export"),
    ],
)
def test_the_rules_catch_an_import_in_the_wrong_direction(module, source):
    assert violations(module, source)


def test_import_kbert_is_light():
    code = """
import sys, time
start = time.process_time()
import kbert
elapsed = time.process_time() - start
heavy = {"keras", "tensorflow", "numpy", "tyro"} & set(sys.modules)
print(elapsed, *heavy)
"""
    runs = [subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True) for _ in "123"]
    assert min(float(run.stdout.split()[0]) for run in runs) < 0.1
    assert all(len(run.stdout.split()) == 1 for run in runs), "Keras, TensorFlow, NumPy or tyro was loaded"


SERVE_EXTRA = ("orjson", "starlette", "uvicorn", "prometheus_client", "httpx", "tensorflow_serving")
OF_SERVING = {f"kbert.serving.{name}" for name in ("rest", "models", "server", "batching", "client", "lines", "asking")}
OF_SERVING |= {"kbert.serving.over_rest", "kbert.serving.over_grpc"}


def test_what_the_serve_extra_brings_only_servers_and_clients_need():
    """Or `make demo`, which does without it, ends where it exports."""
    elsewhere = [*OF_SERVING, "kbert.benchmark.systems", "kbert.model.gpu"]  # that last one JAX alone imports
    others = [name_of(file) for file in MODULES if not within(name_of(file), elsewhere)]
    code = "import sys; sys.modules.update(dict.fromkeys(sys.argv[1].split()))\n"
    code += "import importlib; [importlib.import_module(name) for name in sys.argv[2:]]"
    command = [sys.executable, "-c", code, " ".join(SERVE_EXTRA), *others]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert "kbert.serving.export" in others and done.returncode == 0, done.stderr[-2000:]


def test_recipes_answer_help_without_waiting_for_tensorflow():
    code = """
import runpy, sys
for path in sys.argv[1:]:
    runpy.run_path(path)
    if {"keras", "tensorflow"} & set(sys.modules):
        sys.exit(path)
"""
    done = subprocess.run([sys.executable, "-c", code, *RECIPES], cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_each_public_name_resolves_to_what_it_says():
    for name in kbert.__all__:
        assert getattr(kbert, name).__name__ == name
    assert set(kbert.__all__) <= set(dir(kbert))


def test_an_unknown_name_is_an_attribute_error_that_lists_the_names():
    with pytest.raises(AttributeError, match=r"no attribute 'Brt'; it has Bert, BertClassifier"):
        _ = kbert.Brt
