import torch


@torch.no_grad()
def run(hidden_states, residual, norm_scale, eps):
    """Sum in float32, rounded once for the residual; the norm works on the unrounded sum."""
    total = hidden_states.float() + residual.float()
    normed = total * torch.rsqrt(total.pow(2).mean(dim=-1, keepdim=True) + eps) * norm_scale.float()
    return normed.to(hidden_states.dtype), total.to(hidden_states.dtype)
