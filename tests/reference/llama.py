"""The decoder that Skerry trains, in PyTorch: LlamaForCausalLM with its tensor names, and rows
of text that hold several documents.

    model = load("out/model")                       # what `skerry export` or `run` wrote
    logits = model(tokens)                          # (B,T) -> (B,T,V)
    text = generate(model, [256, 72, 105], 40)      # greedy
"""
import json

import torch
from torch import nn

from dit import read_safetensors


class RMSNorm(nn.Module):
    def __init__(self, dim, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(dim)), eps

    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)


def frequencies(half, theta, scaling):
    """How fast each pair turns; scaling: that of transformers' rope_type llama3, or None."""
    f = theta ** (-torch.arange(half, dtype=torch.float64) / half)
    if not scaling:
        return f
    turns = f * scaling["original_max_position_embeddings"] / (2 * torch.pi)
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    mixed = (turns - low) / (high - low)
    mixed = mixed * f + (1 - mixed) * f / scaling["factor"]
    return torch.where(turns < low, f / scaling["factor"], torch.where(turns > high, f, mixed))


def turn(x, pos, rope):
    """Rotary embedding of x (B,H,T,D) at positions pos (B,T); it rotates halves, not pairs of neighbours."""
    half = x.shape[-1] // 2
    angles = pos[:, None, :, None] * frequencies(half, *rope)
    cos, sin = angles.cos().float(), angles.sin().float()
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Attention(nn.Module):
    def __init__(self, dim, heads, kv_heads, head_dim, bias, norm, rope):
        super().__init__()
        self.heads, self.kv_heads, self.head_dim, self.rope = heads, kv_heads, head_dim, rope
        self.q_proj = nn.Linear(dim, heads * head_dim, bias=bias)
        self.k_proj = nn.Linear(dim, kv_heads * head_dim, bias=bias)
        self.v_proj = nn.Linear(dim, kv_heads * head_dim, bias=bias)
        self.o_proj = nn.Linear(heads * head_dim, dim, bias=False)
        self.q_norm, self.k_norm = (norm(head_dim) for _ in "qk")

    def forward(self, x, pos, visible):
        B, T, _ = x.shape
        q, k, v = (f(x).view(B, T, -1, self.head_dim).transpose(1, 2)
                   for f in (self.q_proj, self.k_proj, self.v_proj))
        q, k = self.q_norm(q), self.k_norm(k)
        if self.rope:
            q, k = turn(q, pos, self.rope), turn(k, pos, self.rope)
        k, v = (t.repeat_interleave(self.heads // self.kv_heads, 1) for t in (k, v))
        scores = q @ k.transpose(-2, -1) * self.head_dim ** -0.5
        weights = scores.masked_fill(~visible[:, None], -torch.inf).softmax(-1)
        return self.o_proj((weights @ v).transpose(1, 2).reshape(B, T, -1))


class MLP(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.gate_proj = nn.Linear(dim, hidden, bias=False)
        self.up_proj = nn.Linear(dim, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, dim, bias=False)

    def forward(self, x):
        return self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, dim, heads, kv_heads, head_dim, bias, qk_norm, hidden, rope, eps):
        super().__init__()
        norm = (lambda width: RMSNorm(width, eps)) if qk_norm else nn.Identity
        self.self_attn = Attention(dim, heads, kv_heads, head_dim, bias, norm, rope)
        self.mlp = MLP(dim, hidden)
        self.input_layernorm = RMSNorm(dim, eps)
        self.post_attention_layernorm = RMSNorm(dim, eps)

    def forward(self, x, pos, visible):
        x = x + self.self_attn(self.input_layernorm(x), pos, visible)
        return x + self.mlp(self.post_attention_layernorm(x))


class Inner(nn.Module):
    """The decoder without its head: `model` in tensor names."""

    def __init__(self, vocab, dim, layers, eps):
        super().__init__()
        self.embed_tokens = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList(layers)
        self.norm = RMSNorm(dim, eps)


class Llama(nn.Module):
    def __init__(self, vocab_size, hidden_size, intermediate_size, num_hidden_layers, num_attention_heads,
                 num_key_value_heads, rope_theta=10000.0, rms_norm_eps=1e-5, tie_word_embeddings=False, rope_scaling=None,
                 head_dim=0, qkv_bias=False, qk_norm=False, no_rope_layer_interval=0, **_):
        super().__init__()
        every = no_rope_layer_interval or num_hidden_layers + 1
        layers = [Layer(hidden_size, num_attention_heads, num_key_value_heads, head_dim or hidden_size // num_attention_heads, qkv_bias, qk_norm,
                        intermediate_size, (rope_theta, rope_scaling) if i % every else None, rms_norm_eps) for i in range(1, num_hidden_layers + 1)]
        self.model = Inner(vocab_size, hidden_size, layers, rms_norm_eps)
        self.lm_head = None if tie_word_embeddings else nn.Linear(hidden_size, vocab_size, bias=False)

    def forward(self, tokens, start=None, pos=None):
        """Token i attends to start[i]..i and has position pos[i] in its document."""
        B, T = tokens.shape
        i = torch.arange(T)
        start = torch.zeros(B, T, dtype=torch.long) if start is None else start
        pos = i.expand(B, T) if pos is None else pos
        visible = (i[None, None, :] >= start[:, :, None]) & (i[None, None, :] <= i[None, :, None])
        x = self.model.embed_tokens(tokens)
        for layer in self.model.layers:
            x = layer(x, pos, visible)
        x = self.model.norm(x)
        return x @ (self.model.embed_tokens if self.lm_head is None else self.lm_head).weight.T


def load(folder):
    config = json.load(open(f"{folder}/config.json"))
    kind = config["model_type"]
    model = Llama(qkv_bias=kind == "qwen2", qk_norm=kind == "qwen3", **config)
    model.load_state_dict(read_safetensors(f"{folder}/model.safetensors")[0])
    return model.eval()


@torch.no_grad()
def generate(model, prompt, n):
    """The n tokens after the prompt, each the most likely one."""
    ids = list(prompt)
    for _ in range(n):
        ids.append(model(torch.tensor([ids]))[0, -1].argmax().item())
    return ids[len(prompt):]
