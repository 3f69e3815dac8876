"""Text files to finished batches for pre-training, by kbert's pipeline."""

import time

from worker import serve

SPECIAL = 3  # [CLS] and two [SEP] of each row, which others do not make


def prepare(job):
    from kbert.command_line import import_tensorflow

    import_tensorflow()
    import tensorflow as tf
    import tensorflow_text

    import kbert
    from kbert.text.sentences import CorpusFormat

    tokenizer = kbert.WordPiece(job["vocabulary"])
    rule = {"sequence_length": job["sequence_length"], "batch_size": job["batch_size"]}
    begin = time.perf_counter()
    form = CorpusFormat(job["documents"])
    dataset = kbert.pretraining_dataset(job["files"], tokenizer, corpus_format=form, **rule)

    def work():
        begin, tokens = time.perf_counter(), 0
        batches = iter(dataset)  # a new one: this one would fill its buffers while others work
        while tokens < job["tokens"]:
            tokens += int(tf.reduce_sum(next(batches)["input_mask"])) - SPECIAL * job["batch_size"]
        # As much as so many tokens take, as rounds do not end at the same one.
        return {"seconds": (time.perf_counter() - begin) / tokens * job["tokens"]}

    looked_through = time.perf_counter() - begin  # once for a corpus
    work()
    versions = f"tensorflow {tf.__version__}, tensorflow-text {tensorflow_text.__version__}"
    versions += f"; before that {looked_through:.1f} s for the index of the text, once"
    return {"versions": versions, "index_seconds": looked_through}, work


serve(prepare)
