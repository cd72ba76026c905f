import torch


@torch.no_grad()
def run(hidden_states, residual, weight, eps):
    """Residual add, then RMSNorm; returns the normalised rows and the new residual."""
    residual_out = hidden_states + residual
    variance = residual_out.pow(2).mean(dim=-1, keepdim=True)
    normed = residual_out * torch.rsqrt(variance + eps) * weight
    return normed, residual_out
