import torch


def get_inputs(axes_and_scalars, device):
    """Logits of a spread that a language model has, and valid targets."""
    tokens, vocab = axes_and_scalars["tokens"], axes_and_scalars["vocab"]
    return {
        "logits": torch.randn(tokens, vocab, device=device) * 3.0,
        "target": torch.randint(0, vocab, (tokens,), device=device),
    }


@torch.no_grad()
def run(logits, target):
    """Negative log-likelihood of every row's target."""
    log_probs = torch.log_softmax(logits, dim=-1)
    return -log_probs.gather(1, target.unsqueeze(1)).squeeze(1)
