import math

import torch


@torch.no_grad()
def run(query, key, value):
    """Causal attention over [batch, heads, seq, head_dim]."""
    seq = query.shape[-2]
    scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(query.shape[-1])
    mask = torch.ones(seq, seq, dtype=torch.bool, device=query.device).tril()
    scores = scores.masked_fill(~mask, float("-inf"))
    return torch.matmul(torch.softmax(scores, dim=-1), value)
