"""SDPA's results on a GPU, by each backend, beside float64: with masks, at logits near 0 and near -120."""

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as sdpa

MASKS = {
    "no mask": lambda n: None,
    "all seen": lambda n: torch.ones(n, n, device="cuda", dtype=torch.bool),
    "every 7th row blind": lambda n: torch.arange(n, device="cuda")[:, None].expand(n, n) % 7 != 3,
}
NAMES = "O", "dQ", "dK", "dV"


def results(attention, inputs, dtype, mask):
    q, k, v, do = (x.to(dtype).detach().requires_grad_() for x in inputs)
    o = attention(q, k, v, mask)
    return o.detach(), *torch.autograd.grad((o * do).sum(), (q, k, v))


def by_formula(q, k, v, mask):  # a row that sees no key has P = 0
    s = q @ k.mT / 8
    return torch.softmax(s if mask is None else s.masked_fill(~mask, -1e300), -1) * (1 if mask is None else mask) @ v


def told(found, expected):
    if left := (~found.isfinite()).sum().item():
        return f"{left} not finite"
    return f"{((found - expected).abs().max() / expected.abs().max()).item():.4f}"


torch.manual_seed(0)
everything = torch.randn(4, 1, 2, 256, 64, device="cuda", dtype=torch.float16)
for mean in 0, -120:
    for rows in 128, 192, 256:
        q, k, v, do = everything[..., :rows, :].clone()
        if mean:  # one dim alone makes it: 8 * -120 / 8, and is exact
            q[..., 0], k[..., 0] = 8.0, mean
        for mask_name, mask_of in MASKS.items():
            mask = mask_of(rows)
            expected = results(by_formula, (q, k, v, do), torch.float64, mask)
            for name in "CUDNN_ATTENTION", "EFFICIENT_ATTENTION", "MATH":
                with sdpa_kernel(getattr(SDPBackend, name)):
                    found = results(sdpa, (q, k, v, do), torch.float16, mask)
                each = (f"{what} {told(f, e)}" for what, f, e in zip(NAMES, found, expected, strict=True))
                print(f"logits near {mean:4} {rows} rows {mask_name:20} {name:20} {'  '.join(each)}")
