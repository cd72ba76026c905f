import torch
import torch.nn.functional as F


def get_inputs(axes_and_scalars, device):
    """Tokens of all ranks that were sent to one; experts are numbered from its first one, others' are outside."""
    tokens, hidden = axes_and_scalars["tokens"], axes_and_scalars["hidden"]
    inter, experts, local = (axes_and_scalars[name] for name in ("inter", "experts", "local_experts"))
    top_k = axes_and_scalars["top_k"]
    scores, chosen = torch.rand(tokens, experts, device=device).topk(top_k, dim=-1)
    first = local * torch.randint(experts // local, (1, 1), device=device)
    return {
        "grad_output": torch.randn(tokens, hidden, device=device),
        "hidden_states": torch.randn(tokens, hidden, device=device),
        "topk_indices": chosen - first,
        "topk_weights": torch.softmax(torch.randn_like(scores), dim=-1),
        "gate_weights": torch.randn(local, inter, hidden, device=device) * 0.02,
        "up_weights": torch.randn(local, inter, hidden, device=device) * 0.02,
        "down_weights": torch.randn(local, hidden, inter, device=device) * 0.02,
    }


@torch.no_grad()
def run(grad_output, hidden_states, topk_indices, topk_weights, gate_weights, up_weights, down_weights):
    """Gradients of sum_k w_k down(silu(gate x) * up x) over this rank's experts, one by one."""
    grad_hidden_states = torch.zeros_like(hidden_states)
    grad_topk_weights = torch.zeros_like(topk_weights)
    grad_gate_weights = torch.zeros_like(gate_weights)
    grad_up_weights = torch.zeros_like(up_weights)
    grad_down_weights = torch.zeros_like(down_weights)

    for expert in range(gate_weights.shape[0]):
        token, slot = torch.where(topk_indices == expert)
        if token.numel() == 0:
            continue
        x, grad = hidden_states[token], grad_output[token]
        gate, up = F.linear(x, gate_weights[expert]), F.linear(x, up_weights[expert])
        sigmoid = torch.sigmoid(gate)
        silu = gate * sigmoid
        inner = silu * up

        grad_inner = grad @ down_weights[expert]
        grad_topk_weights[token, slot] = (grad_inner * inner).sum(dim=-1)
        routed = grad * topk_weights[token, slot].unsqueeze(-1)
        grad_inner = grad_inner * topk_weights[token, slot].unsqueeze(-1)
        grad_down_weights[expert] = routed.T @ inner
        grad_up = grad_inner * silu
        grad_gate = grad_inner * up * (sigmoid * (1.0 + gate * (1.0 - sigmoid)))
        grad_gate_weights[expert] = grad_gate.T @ x
        grad_up_weights[expert] = grad_up.T @ x
        grad_hidden_states.index_add_(0, token, grad_gate @ gate_weights[expert] + grad_up @ up_weights[expert])

    return grad_hidden_states, grad_topk_weights, grad_gate_weights, grad_up_weights, grad_down_weights
