"""Writes adamw_golden.npz: torch's AdamW after clip_grad_norm_, on a matrix that decays and a bias.

python tests/data/make_adamw_golden.py        (needs torch; the tests need only the file)
"""

import pathlib

import numpy as np
import torch

STEPS, RATE = 6, 0.01


def main():
    torch.manual_seed(0)
    kernel, bias = (torch.nn.Parameter(torch.randn(shape)) for shape in ((5, 3), (3,)))
    # Norms from below to far above the limit of 1.
    gradients = [[torch.randn(p.shape) * 10.0 ** (step - 3) for p in (kernel, bias)] for step in range(STEPS)]
    groups = [{"params": [kernel], "weight_decay": 0.1}, {"params": [bias], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.999), eps=1e-6)
    arrays = {
        "rate": np.array(RATE),
        "kernel/0": kernel.detach().numpy().copy(),
        "bias/0": bias.detach().numpy().copy(),
    }
    for step, (kernel.grad, bias.grad) in enumerate(gradients, start=1):
        arrays |= {
            f"kernel_gradient/{step}": kernel.grad.numpy().copy(),
            f"bias_gradient/{step}": bias.grad.numpy().copy(),
        }
        arrays[f"norm/{step}"] = torch.nn.utils.clip_grad_norm_([kernel, bias], 1.0).numpy()
        optimizer.step()
        arrays |= {f"kernel/{step}": kernel.detach().numpy().copy(), f"bias/{step}": bias.detach().numpy().copy()}
    np.savez_compressed(pathlib.Path(__file__).with_name("adamw_golden.npz"), **arrays)


if __name__ == "__main__":
    main()
