import torch


@torch.no_grad()
def run(x, bias, residual, weight, shift):
    """LayerNorm(x + bias + residual) with eps 1e-5."""
    hidden = x + bias + residual
    mean = hidden.mean(dim=-1, keepdim=True)
    centred = hidden - mean
    variance = centred.pow(2).mean(dim=-1, keepdim=True)
    return centred * torch.rsqrt(variance + 1e-5) * weight + shift
