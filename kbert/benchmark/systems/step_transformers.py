"""A step of transformers' BertForPreTraining in torch, with the attention and the optimizer that are fastest there."""

from worker import repeated, serve


def prepare(job):
    import numpy as np
    import torch
    import transformers

    config = {name: value for name, value in job["config"].items() if name in transformers.BertConfig().to_dict()}
    config |= {"hidden_act": "gelu_pytorch_tanh", "attn_implementation": "sdpa"}
    device, half = "cuda" if torch.cuda.is_available() else "cpu", job["setting"]["precision"] == "bfloat16"
    torch.set_float32_matmul_precision("high")  # on a GPU as JAX has it
    model = transformers.BertForPreTraining(transformers.BertConfig(**config)).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    call = torch.compile(model) if job["compiled"] else model
    batch = {name: torch.from_numpy(value).long().to(device) for name, value in np.load(job["batch"]).items()}
    labels = torch.full_like(batch["input_ids"], -100).scatter_(1, batch["masked_lm_positions"], batch["masked_lm_ids"])

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, torch.bfloat16, enabled=half):
            output = call(
                input_ids=batch["input_ids"],
                token_type_ids=batch["segment_ids"],
                attention_mask=batch["input_mask"],
                labels=labels,
                next_sentence_label=batch["next_sentence_labels"],
            )
        output.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return output.loss.detach()

    about = {"versions": f"transformers {transformers.__version__}, torch {torch.__version__}"}
    return about, repeated(step, wait=lambda loss: loss.item())


serve(prepare)
