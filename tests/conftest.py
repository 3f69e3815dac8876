"""What tests of several folders share, and which tests begin first."""

import multiprocessing

import pytest
from small_corpus import VOCABULARY, text
from stranger import write_endings, write_questions, write_tags

import kbert
from kbert.weights import huggingface
from kbert.weights.by_name import without_heads

# They take long, most as they start processes and wait for them: begun last, one core would be left with them.
BEGIN_FIRST = {
    "test_step",
    "test_kills",
    "test_recipes",
    "test_fine_tuning_recipes",
    "test_distribution",
    "test_checkpointing",
    "test_search",
    "test_data_service",
    "test_backends",
}


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.path.stem not in BEGIN_FIRST)


@pytest.fixture(scope="session")
def start_process():
    """start_process(function, *arguments) -> a process of its own, which has TensorFlow imported already."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.training.tiny_run"])

    def start(function, *arguments, **options):
        process = context.Process(target=function, args=arguments, kwargs=options)
        process.start()
        return process

    return start


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A stranger's folder with books in it."""
    folder = tmp_path_factory.mktemp("stranger")
    for split, count in (("train", 6), ("heldout", 3)):
        (folder / "books" / split).mkdir(parents=True)
        for number in range(count):
            (folder / "books" / split / f"{number}.txt").write_text(text(number + count, 3_000), encoding="utf-8")
    (folder / "glue" / "MRPC").mkdir(parents=True)
    for name, count in (("train", 12), ("dev", 8), ("test", 5)):
        lines = [f"{n % 2}\t{n}\t{n}\t{text(n, 40)}\t{text(n + n % 2, 40)}".replace("\n", " ") for n in range(count)]
        header = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
        (folder / "glue" / "MRPC" / f"{name}.tsv").write_text(header + "".join(f"{line}\n" for line in lines))
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    write_questions(folder)
    write_tags(folder)
    write_endings(folder)
    (folder / "lines.txt").write_text("".join(text(n, 40 * n).replace("\n", " ").strip() + "\n" for n in range(4)))
    return folder


@pytest.fixture(scope="session")
def start(tmp_path_factory):
    """An encoder without heads, as a folder of Hugging Face's."""
    path = tmp_path_factory.mktemp("start")
    trained = kbert.BertPretrainer(kbert.BertConfig.from_size("tiny", vocab_size=len(VOCABULARY)))
    huggingface.write(without_heads(trained), kbert.WordPiece(VOCABULARY), path)
    return path
