import torch


def rms_norm(x, scale):
    x32 = x.float()
    return (x32 * torch.rsqrt(x32.pow(2).mean(dim=-1, keepdim=True) + 1e-6)).to(x.dtype) * scale


@torch.no_grad()
def run(query, key, query_scale, key_scale):
    """Normalise every head of queries and keys."""
    return rms_norm(query, query_scale), rms_norm(key, key_scale)
