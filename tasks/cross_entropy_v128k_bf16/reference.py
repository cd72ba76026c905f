import torch
import torch.nn.functional as F


def get_inputs(axes_and_scalars, device):
    """Logits of a language model's spread, one of each row stands out; one target in eight is padding."""
    tokens, vocab = axes_and_scalars["tokens"], axes_and_scalars["vocab"]
    logits = torch.randn(tokens, vocab, device=device, dtype=torch.bfloat16) * 2.0
    # Without these the mean over many rows would be the same whatever the logits are.
    likely = torch.randint(0, vocab, (tokens, 1), device=device)
    logits.scatter_add_(1, likely, 20.0 * torch.rand(tokens, 1, device=device).to(logits.dtype))
    target = torch.randint(0, vocab, (tokens,), device=device)
    padding = torch.randint(0, 8, (tokens,), device=device) == 0
    padding[0] = False
    return {"logits": logits, "target": target.masked_fill(padding, -100)}


@torch.no_grad()
def run(logits, target):
    """Negative log-likelihood, averaged over the targets that count."""
    return F.cross_entropy(logits.float(), target, ignore_index=-100)
