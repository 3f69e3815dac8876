"""Lines of text to token ids by Hugging Face tokenizers, all cores: a part of the work."""

import time

from worker import serve


def prepare(job):
    import tokenizers

    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece.from_file(job["vocabulary"], unk_token="[UNK]"))
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    lines = [line for path in job["files"] for line in open(path, encoding="utf-8")]
    place = 0

    def work():
        nonlocal place
        begin, tokens = time.perf_counter(), 0
        while tokens < job["tokens"]:
            tokens += sum(map(len, tokenizer.encode_batch_fast(lines[place : place + 1000])))
            place = place + 1000 if place + 1000 < len(lines) else 0
        return {"seconds": (time.perf_counter() - begin) / tokens * job["tokens"]}

    work()
    return {"versions": f"tokenizers {tokenizers.__version__}"}, work


serve(prepare)
