import math

import torch

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


def get_inputs(axes_and_scalars, device):
    """Random codes; scales that give the dequantised values about unit variance."""
    batch, seq = axes_and_scalars["batch"], axes_and_scalars["seq"]
    packed, blocks = axes_and_scalars["packed"], axes_and_scalars["blocks"]

    def tensor(heads):
        codes = torch.randint(0, 256, (batch, seq, heads, packed), dtype=torch.uint8, device=device)
        scale = (torch.rand(batch, seq, heads, blocks, device=device) * 0.4 + 0.15).to(torch.float8_e4m3fn)
        return codes.view(torch.float4_e2m1fn_x2), scale

    names = (("q", "heads"), ("k", "kv_heads"), ("v", "kv_heads"))
    inputs = {}
    for name, heads in names:
        inputs[name], inputs[f"{name}_scale"] = tensor(axes_and_scalars[heads])
    return inputs


def dequantize(codes, scale):
    """[..., D/2] pairs of codes and [..., D/16] scales as bfloat16 [..., D]."""
    codes = codes.view(torch.uint8)
    table = torch.tensor(E2M1, dtype=torch.float32, device=codes.device)
    nibbles = torch.stack((codes & 15, codes >> 4), dim=-1).flatten(-2)
    values = table[nibbles.long()].unflatten(-1, (-1, 16)) * scale.float().unsqueeze(-1)
    return values.flatten(-2).to(torch.bfloat16)


@torch.no_grad()
def run(q, q_scale, k, k_scale, v, v_scale):
    """Dequantise, repeat key/value heads, causal softmax attention over [batch, seq, heads, head_dim]."""
    query, key, value = dequantize(q, q_scale), dequantize(k, k_scale), dequantize(v, v_scale)
    group = query.shape[2] // key.shape[2]
    query = query.transpose(1, 2)
    key = key.repeat_interleave(group, dim=2).transpose(1, 2)
    value = value.repeat_interleave(group, dim=2).transpose(1, 2)
    seq = query.shape[2]
    scores = torch.matmul(query, key.transpose(-2, -1)).float() / math.sqrt(query.shape[-1])
    causal = torch.ones(seq, seq, dtype=torch.bool, device=query.device).tril()
    weights = torch.softmax(scores.masked_fill(~causal, float("-inf")), dim=-1)
    return torch.matmul(weights.to(value.dtype), value).transpose(1, 2).contiguous()
