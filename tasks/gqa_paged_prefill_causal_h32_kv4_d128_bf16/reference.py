import math

import torch


def get_inputs(axes_and_scalars, device):
    """Random lengths (every sequence has at least as many cached tokens as queries) and scattered pages."""
    seqs, total_q = axes_and_scalars["num_seqs"], axes_and_scalars["total_q"]
    total_kv, pages = axes_and_scalars["num_kv_indices"], axes_and_scalars["num_pages"]
    heads, kv_heads = axes_and_scalars["num_qo_heads"], axes_and_scalars["num_kv_heads"]
    dim = axes_and_scalars["head_dim"]

    def cuts(total):
        inner = torch.randperm(max(total - 1, 0))[: seqs - 1].sort().values + 1
        return torch.cat([torch.zeros(1, dtype=torch.int64), inner, torch.tensor([total])])

    queries = cuts(total_q)
    extra = cuts(total_kv - total_q + seqs) - torch.arange(seqs + 1)
    return {
        "q": torch.randn(total_q, heads, dim, device=device, dtype=torch.bfloat16),
        "k_cache": torch.randn(pages, 1, kv_heads, dim, device=device, dtype=torch.bfloat16),
        "v_cache": torch.randn(pages, 1, kv_heads, dim, device=device, dtype=torch.bfloat16),
        "qo_indptr": queries.to(device=device, dtype=torch.int32),
        "kv_indptr": (queries + extra).to(device=device, dtype=torch.int32),
        "kv_indices": torch.randperm(pages)[:total_kv].to(device=device, dtype=torch.int32),
        "sm_scale": 1.0 / math.sqrt(dim),
    }


@torch.no_grad()
def run(q, k_cache, v_cache, qo_indptr, kv_indptr, kv_indices, sm_scale):
    """Attention of each sequence's queries to its cached tokens up to and including their own position."""
    total_q, num_heads, head_dim = q.shape
    num_kv_heads = k_cache.shape[2]
    group = num_heads // num_kv_heads
    output = torch.zeros_like(q)
    lse = torch.full((total_q, num_heads), float("-inf"), dtype=torch.float32, device=q.device)
    keys = k_cache.flatten(0, 1)
    values = v_cache.flatten(0, 1)
    q_bounds, kv_bounds = qo_indptr.tolist(), kv_indptr.tolist()

    for start, end, kv_start, kv_end in zip(q_bounds[:-1], q_bounds[1:], kv_bounds[:-1], kv_bounds[1:]):
        length, kv_length = end - start, kv_end - kv_start
        if length == 0 or kv_length == 0:
            continue
        pages = kv_indices[kv_start:kv_end].long()
        key = keys[pages].float().permute(1, 2, 0)
        value = values[pages].float().transpose(0, 1)
        positions = torch.arange(length, device=q.device) + kv_length - length
        visible = torch.arange(kv_length, device=q.device)[None, :] <= positions[:, None]
        query = q[start:end].float().view(length, num_kv_heads, group, head_dim)
        for head in range(num_kv_heads):
            scores = torch.matmul(query[:, head].transpose(0, 1), key[head]) * sm_scale
            scores = scores.masked_fill(~visible, float("-inf"))
            heads = slice(head * group, (head + 1) * group)
            lse[start:end, heads] = (torch.logsumexp(scores, dim=-1) / math.log(2.0)).T
            attended = torch.matmul(torch.softmax(scores, dim=-1), value[head])
            output[start:end, heads] = attended.transpose(0, 1).to(q.dtype)
    return output, lse
