import torch
import torch.nn.functional as F


def rms_norm(x, weight, eps):
    x32 = x.float()
    return weight * (x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


def rotate(x, cos, sin):
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


@torch.no_grad()
def run(
    hidden_states, input_norm_weight, q_proj_weight, k_proj_weight, v_proj_weight, o_proj_weight,
    post_norm_weight, gate_proj_weight, up_proj_weight, down_proj_weight, eps, rope_theta,
):
    """Attention and feed-forward halves, each normalised first and added to its input."""
    batch, seq, hidden = hidden_states.shape
    head_dim = 128
    heads, kv_heads = q_proj_weight.shape[0] // head_dim, k_proj_weight.shape[0] // head_dim
    device = hidden_states.device

    normed = rms_norm(hidden_states, input_norm_weight, eps)
    query = F.linear(normed, q_proj_weight).view(batch, seq, heads, head_dim).transpose(1, 2)
    key = F.linear(normed, k_proj_weight).view(batch, seq, kv_heads, head_dim).transpose(1, 2)
    value = F.linear(normed, v_proj_weight).view(batch, seq, kv_heads, head_dim).transpose(1, 2)

    steps = torch.arange(0, head_dim, 2, dtype=torch.float32, device=device) / head_dim
    angles = torch.arange(seq, dtype=torch.float32, device=device)[:, None] / rope_theta**steps
    angles = torch.cat((angles, angles), dim=-1)
    cos, sin = angles.cos().to(query.dtype), angles.sin().to(query.dtype)
    query, key = rotate(query, cos, sin), rotate(key, cos, sin)

    key = key.repeat_interleave(heads // kv_heads, dim=1)
    value = value.repeat_interleave(heads // kv_heads, dim=1)
    scores = torch.matmul(query, key.transpose(-2, -1)) * head_dim**-0.5
    causal = torch.ones(seq, seq, dtype=torch.bool, device=device).tril()
    scores = scores.masked_fill(~causal, float("-inf"))
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    attended = torch.matmul(weights, value).transpose(1, 2).reshape(batch, seq, hidden)
    hidden_states = hidden_states + F.linear(attended, o_proj_weight)

    normed = rms_norm(hidden_states, post_norm_weight, eps)
    gated = F.silu(F.linear(normed, gate_proj_weight)) * F.linear(normed, up_proj_weight)
    return hidden_states + F.linear(gated, down_proj_weight)
