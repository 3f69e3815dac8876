"""transformers' BertModel in torch on a batch of token ids, padded to the longest."""

from worker import checked, padded, repeated, serve


def prepare(job):
    import torch
    import transformers

    model = transformers.BertModel.from_pretrained(job["folder"]).eval()
    batch = padded(job["rows"])
    batch = {"input_ids": torch.from_numpy(batch["input_ids"]), "attention_mask": torch.from_numpy(batch["input_mask"])}

    @torch.inference_mode()
    def encode():
        outputs = model(**batch)
        return outputs.last_hidden_state.numpy(), outputs.pooler_output

    about = {"versions": f"transformers {transformers.__version__}, torch {torch.__version__}"}
    return about | {"check": checked(encode()[0][:, 0])}, repeated(encode)


serve(prepare)
