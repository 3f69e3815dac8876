"""Where pre-training batches come from: plain text, or TFRecords of ready instances. The same questions to either."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import tensorflow as tf

from kbert.text import data_service
from kbert.text.baselines import token_counts
from kbert.text.documents import Corpus, expand_paths
from kbert.text.masking import Masking
from kbert.text.pretraining_data import GROUP_BLOCKS, InstanceRule, group_maker
from kbert.text.records import Records, records_dataset
from kbert.text.sentences import PLAIN_TEXT, CorpusFormat
from kbert.text.token_cache import CachedTokens
from kbert.text.walk import START, Walk

Progress = Callable[[int, int], None]


def source(paths: Iterable[str], tokenizer, rule: InstanceRule, form: CorpusFormat, cache: str, progress: Progress):
    """A TextSource or, for *.tfrecord files, a RecordSource; raises ValueError for what cannot be read."""
    files = expand_paths(paths)
    records = [path for path in files if path.endswith(".tfrecord")]
    if records and len(records) < len(files):
        other = next(path for path in files if not path.endswith(".tfrecord"))
        raise ValueError(f"{other}: lies among TFRecords such as {records[0]}; expected one kind of file")
    if records:
        if (rule.short_sequences, rule.masking, form) != (InstanceRule.short_sequences, Masking(), PLAIN_TEXT):
            told = "records hold token ids, cut and masked already"
            raise ValueError(f"{records[0]}: {told}; expected no flags of text, and of masking max-predictions alone")
        return RecordSource(records, tokenizer, rule)
    return TextSource(Corpus(files, form, cache, progress), tokenizer, rule)


class Source:
    """What both kinds have in common; each has `batches(batch_size, seed, position)`, endless."""

    def sample(self, instances: int, batch_size: int, seed: int = 1) -> tf.data.Dataset:
        """The first whole batches that hold so many instances, their number known; made once and kept in memory."""
        batches = -(-instances // batch_size)
        dataset = self.batches(batch_size, seed).take(batches)
        return dataset.cache().apply(tf.data.experimental.assert_cardinality(batches))


class TextSource(Source):
    """Plain text, made into instances as it is read.

    Attributes: digest, a hash of the text; facts, name -> count, to be shown. Raises ValueError as group_maker does,
    and where no sequence can be made of the text.
    """

    def __init__(self, corpus: Corpus, tokenizer, rule: InstanceRule):
        self.corpus, self.tokenizer, self.rule, self.tokens = corpus, tokenizer, rule, None
        self.makers, self.elsewhere = {}, {}  # of a seed
        self.digest, self.facts = corpus.digest, {name: count for name, count in corpus.counts.items() if count}
        # Block by block, as a whole group takes seconds to make.
        instances, zero = self._instances(1), tf.constant(0, tf.int64)
        blocks = (instances(zero, number[None], zero) for number in tf.range(corpus.counts["blocks"], dtype=tf.int64))
        if not any(len(block["input_ids"]) for block in blocks):
            raise ValueError(f"corpus {corpus.names[0]}: no sequence can be made of its text; expected more text")

    def use_token_cache(self, cache: str, progress: Progress) -> None:
        """Reads token ids from disk from now on; they are put there first where they are missing."""
        self.tokens, self.makers = CachedTokens(self.corpus, self.tokenizer, cache, progress), {}

    def batches(self, batch_size: int, seed: int = 1, position: tuple[int, int, int] = START) -> tf.data.Dataset:
        """Endless batches; see pretraining_data.pretraining_dataset."""
        walk = Walk(self.corpus.counts["blocks"], GROUP_BLOCKS, seed, None, position)
        return walk.batches(self._instances(seed), batch_size, self.elsewhere.get(seed, ()))

    def serve(self, seed: int, port: int, ready: Callable[[], None] = lambda: None) -> None:
        """Makes groups for the training of others, until the process is told to end; calls `ready` before."""
        data_service.serve(self._instances(seed), self._about(seed), port, ready)

    def use_servers(self, seed: int, addresses: Sequence[str]) -> None:
        """Has groups of batches of that seed made by servers from now on; see data_service.py."""
        each = [data_service.served(self._instances(seed), self._about(seed), address) for address in addresses]
        self.elsewhere[seed] = [call for calls in zip(*each, strict=True) for call in calls]  # servers in turn

    def _instances(self, seed: int) -> Callable:
        if seed not in self.makers:  # once, as its graph takes two seconds
            self.makers[seed] = group_maker(self.corpus, self.tokenizer, self.rule, seed, self.tokens)
        return self.makers[seed]

    def _about(self, seed: int) -> str:
        return f"text {self.digest}, vocabulary {self.tokenizer.digest}, seed {seed}, {self.rule}"

    def token_counts(self, seed: int = 1) -> np.ndarray:
        """How often each piece occurs in a sample of the text, int64 [V]."""
        return token_counts(self.corpus, self.tokenizer, seed)


class RecordSource(Source):
    """TFRecords as Google's create_pretraining_data.py writes them.

    Raises ValueError where they do not fit the flags or the vocabulary.
    """

    def __init__(self, paths: list[str], tokenizer, rule: InstanceRule):
        self.records, self.tokenizer = Records(paths), tokenizer
        self.digest, self.facts = self.records.digest, {"records": len(self.records.places)}
        expected = {"input_ids": rule.sequence_length, "masked_lm_ids": rule.predictions}
        for name, length in expected.items():
            if self.records.lengths[name] != length:
                raise ValueError(f"{paths[0]}: {name} has {self.records.lengths[name]} items; the flags say {length}")
        if rule.objectives != "mlm+nsp":
            raise ValueError(f"{paths[0]}: records hold sentence pairs and masks; expected objectives mlm+nsp")
        if (largest := self.records.largest_id) >= tokenizer.vocab_size:
            told = f"the vocabulary has {tokenizer.vocab_size} pieces"
            raise ValueError(f"{paths[0]}: these records hold the id {largest}; {told}")

    def use_token_cache(self, cache: str, progress: Progress) -> None:
        raise ValueError(f"{self.records.files[0]}: records hold token ids already; expected no token cache")

    def serve(self, seed: int, port: int, ready: Callable[[], None] = lambda: None) -> None:
        raise ValueError(f"{self.records.files[0]}: records are instances already; expected text for a data server")

    def use_servers(self, seed: int, addresses: Sequence[str]) -> None:
        self.serve(seed, 0)

    def batches(self, batch_size: int, seed: int = 1, position: tuple[int, int, int] = START) -> tf.data.Dataset:
        """Endless batches; see pretraining_data.pretraining_dataset."""
        return records_dataset(self.records, batch_size, seed=seed, position=position)

    def token_counts(self, seed: int = 1) -> np.ndarray:
        """How often each piece is predicted in a sample of the records, int64 [V]."""
        counts = np.zeros(self.tokenizer.vocab_size, np.int64)
        for batch in self.batches(256, seed).take(256).as_numpy_iterator():
            counts += np.bincount(batch["masked_lm_ids"][batch["masked_lm_weights"] > 0], minlength=len(counts))
        return counts
