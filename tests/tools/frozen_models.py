"""Small networks with random weights, in the folders that diffusers and transformers save,
made without either: for the tests of whole jobs.  Those who compare arithmetic use the real
libraries (tests/latents)."""
import json
import os
import struct

import numpy as np


def write_safetensors(path, tensors):
    header, blobs, at = {}, [], 0
    for name, values in tensors.items():
        raw = np.ascontiguousarray(values, np.float32).tobytes()
        header[name] = {"dtype": "F32", "shape": list(np.shape(values)), "data_offsets": [at, at + len(raw)]}
        blobs.append(raw)
        at += len(raw)
    head = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(head)) + head + b"".join(blobs))


class Tensors(dict):
    """Random weights by layer: variance 1/inputs for products, ones and zeros for norms."""

    def __init__(self, seed):
        super().__init__()
        self.rng = np.random.default_rng(seed)

    def weight(self, name, *shape):
        fan = int(np.prod(shape[1:])) or 1
        self[name + ".weight"] = self.rng.standard_normal(shape) / np.sqrt(fan)

    def layer(self, name, *shape):
        self.weight(name, *shape)
        self[name + ".bias"] = 0.1 * self.rng.standard_normal(shape[0])

    def norm(self, name, n, bias=True):
        self[name + ".weight"] = 1 + 0.1 * self.rng.standard_normal(n)
        if bias:
            self[name + ".bias"] = 0.1 * self.rng.standard_normal(n)


def save(folder, config, tensors, weights):
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f)
    write_safetensors(os.path.join(folder, weights), tensors)
    return folder


def resnet(t, name, a, b):
    t.norm(name + ".norm1", a)
    t.layer(name + ".conv1", b, a, 3, 3)
    t.norm(name + ".norm2", b)
    t.layer(name + ".conv2", b, b, 3, 3)
    if a != b:
        t.layer(name + ".conv_shortcut", b, a, 1, 1)


def middle(t, half, n):
    resnet(t, half + ".mid_block.resnets.0", n, n)
    t.norm(half + ".mid_block.attentions.0.group_norm", n)
    for name in ("to_q", "to_k", "to_v", "to_out.0"):
        t.layer(f"{half}.mid_block.attentions.0.{name}", n, n)
    resnet(t, half + ".mid_block.resnets.1", n, n)


def vae(folder, channels=(8, 16), latent=4, seed=1, **config):
    """An AutoencoderKL that shrinks pictures by 2 to the number of channels less one."""
    t, last = Tensors(seed), len(channels) - 1
    t.layer("encoder.conv_in", channels[0], 3, 3, 3)
    for i, b in enumerate(channels):
        resnet(t, f"encoder.down_blocks.{i}.resnets.0", channels[max(i - 1, 0)], b)
        if i < last:
            t.layer(f"encoder.down_blocks.{i}.downsamplers.0.conv", b, b, 3, 3)
    middle(t, "encoder", channels[-1])
    t.norm("encoder.conv_norm_out", channels[-1])
    t.layer("encoder.conv_out", 2 * latent, channels[-1], 3, 3)
    t.layer("quant_conv", 2 * latent, 2 * latent, 1, 1)
    t.layer("post_quant_conv", latent, latent, 1, 1)
    t.layer("decoder.conv_in", channels[-1], latent, 3, 3)
    middle(t, "decoder", channels[-1])
    for i, b in enumerate(reversed(channels)):
        a = channels[-1] if i == 0 else channels[last - i + 1]
        resnet(t, f"decoder.up_blocks.{i}.resnets.0", a, b)
        resnet(t, f"decoder.up_blocks.{i}.resnets.1", b, b)
        if i < last:
            t.layer(f"decoder.up_blocks.{i}.upsamplers.0.conv", b, b, 3, 3)
    t.norm("decoder.conv_norm_out", channels[0])
    t.layer("decoder.conv_out", 3, channels[0], 3, 3)
    return save(folder, {
        "_class_name": "AutoencoderKL", "act_fn": "silu", "in_channels": 3, "out_channels": 3,
        "block_out_channels": list(channels), "latent_channels": latent, "layers_per_block": 1,
        "down_block_types": ["DownEncoderBlock2D"] * len(channels),
        "up_block_types": ["UpDecoderBlock2D"] * len(channels), "norm_num_groups": 4,
        "sample_size": 32, "scaling_factor": 0.5, **config}, t, "diffusion_pytorch_model.safetensors")


def clip(folder, vocab, dim=32, layers=2, heads=2, positions=24, seed=2, **config):
    """A CLIPTextModel."""
    t = Tensors(seed)
    t["text_model.embeddings.token_embedding.weight"] = t.rng.standard_normal((vocab, dim)) * 0.5
    t["text_model.embeddings.position_embedding.weight"] = t.rng.standard_normal((positions, dim)) * 0.1
    for i in range(layers):
        name = f"text_model.encoder.layers.{i}."
        t.norm(name + "layer_norm1", dim)
        for p in ("q_proj", "k_proj", "v_proj", "out_proj"):
            t.layer(f"{name}self_attn.{p}", dim, dim)
        t.norm(name + "layer_norm2", dim)
        t.layer(name + "mlp.fc1", 2 * dim, dim)
        t.layer(name + "mlp.fc2", dim, 2 * dim)
    t.norm("text_model.final_layer_norm", dim)
    return save(folder, {
        "architectures": ["CLIPTextModel"], "model_type": "clip_text_model", "hidden_act": "quick_gelu",
        "hidden_size": dim, "intermediate_size": 2 * dim, "layer_norm_eps": 1e-5,
        "max_position_embeddings": positions, "num_attention_heads": heads, "num_hidden_layers": layers,
        "vocab_size": vocab, **config}, t, "model.safetensors")


def byte_alphabet():
    """The characters that byte-level BPE writes bytes as, in the order of GPT-2."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    rest = [b for b in range(256) if b not in plain]
    return [chr(b) for b in plain] + [chr(256 + i) for i in range(len(rest))]


def clip_tokenizer(folder, words=(), length=24):
    """Writes CLIP's vocabulary: bytes, bytes that end a word, and words.  Returns the number of tokens."""
    os.makedirs(folder, exist_ok=True)
    letters = byte_alphabet()
    tokens, merges = letters + [c + "</w>" for c in letters], []
    for word in words:
        parts = [*word[:-1], word[-1] + "</w>"]
        while len(parts) > 1:
            if parts[0] + parts[1] not in tokens:
                merges.append(f"{parts[0]} {parts[1]}")
                tokens.append(parts[0] + parts[1])
            parts[:2] = [parts[0] + parts[1]]
    tokens += ["<|startoftext|>", "<|endoftext|>"]
    special = {"bos_token": "<|startoftext|>", "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>",
               "unk_token": "<|endoftext|>"}
    files = {"vocab.json": json.dumps({t: i for i, t in enumerate(tokens)}),
             "merges.txt": "#version: 0.2\n" + "".join(m + "\n" for m in merges),
             "special_tokens_map.json": json.dumps(special),
             "tokenizer_config.json": json.dumps({**special, "tokenizer_class": "CLIPTokenizer",
                                                  "model_max_length": length, "do_lower_case": True})}
    for name, text in files.items():
        with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
            f.write(text)
    return len(tokens)


def llama(folder, dim=32, layers=2, heads=4, kv_heads=2, ffn=48, positions=2048, shards=2, seed=3, head_dim=0, bias=False, norms=False, padding=0, **config):
    """Writes a chat model as save_pretrained does: weights in shards, a byte-level tokenizer with two ends, and a chat template."""
    os.makedirs(folder, exist_ok=True)
    vocab = {c: i for i, c in enumerate(byte_alphabet())}
    ends = ["<|endoftext|>", "<|im_end|>"]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    n = len(vocab) + len(ends)
    t, rows, q, kv = Tensors(seed), n + padding, (head_dim or dim // heads) * heads, (head_dim or dim // heads) * kv_heads
    t.weight("model.embed_tokens", rows, dim)
    for i in range(layers):
        at = f"model.layers.{i}."
        for name in ("input_layernorm", "post_attention_layernorm"):
            t.norm(at + name, dim, bias=False)
        for name, out in (("q", q), ("k", kv), ("v", kv)):
            (t.layer if bias else t.weight)(f"{at}self_attn.{name}_proj", out, dim)
        for name in "qk" if norms else "":
            t.norm(f"{at}self_attn.{name}_norm", head_dim, bias=False)
        for name, out, wide in (("self_attn.o_proj", dim, q), ("mlp.gate_proj", ffn, dim), ("mlp.up_proj", ffn, dim), ("mlp.down_proj", dim, ffn)):
            t.weight(at + name, out, wide)
    t.norm("model.norm", dim, bias=False)
    t.weight("lm_head", rows, dim)
    where = {name: f"model-{1 + i * shards // len(t):05}-of-{shards:05}.safetensors" for i, name in enumerate(t)}
    for file in set(where.values()):
        write_safetensors(os.path.join(folder, file), {name: values for name, values in t.items() if where[name] == file})
    files = {"config.json": {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16", "hidden_size": dim, "num_hidden_layers": layers,
                             "num_attention_heads": heads, "num_key_value_heads": kv_heads, "intermediate_size": ffn, "vocab_size": rows, "rms_norm_eps": 1e-6,
                             "rope_theta": 20000.0, "max_position_embeddings": positions, "tie_word_embeddings": False, "bos_token_id": n - 2,
                             "eos_token_id": n - 1, **({"head_dim": head_dim} if head_dim else {}), **config},
             "generation_config.json": {"bos_token_id": n - 2, "eos_token_id": [n - 2, n - 1]},
             "model.safetensors.index.json": {"metadata": {}, "weight_map": where},
             "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": ends[0], "eos_token": ends[1], "pad_token": ends[1],
                                       "model_max_length": positions,
                                       "chat_template": "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}<|im_end|>{% endfor %}"},
             "tokenizer.json": {"version": "1.0", "added_tokens": [{"id": len(vocab) + i, "content": e, **flags} for i, e in enumerate(ends)],
                                "normalizer": None, "pre_tokenizer": level, "post_processor": None, "decoder": level,
                                "model": {"type": "BPE", "vocab": vocab, "merges": []}}}
    for name, values in files.items():
        with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
            json.dump(values, f)


def pipeline(folder, words=()):
    """Writes the root folder of a pipeline with all three."""
    n = clip_tokenizer(os.path.join(folder, "tokenizer"), words)
    vae(os.path.join(folder, "vae"))
    clip(os.path.join(folder, "text_encoder"), n)
    return index(folder)


def index(folder):
    """The file that makes a folder with all three a pipeline's root."""
    with open(os.path.join(folder, "model_index.json"), "w", encoding="utf-8") as f:
        json.dump({"_class_name": "StableDiffusionPipeline", "vae": ["diffusers", "AutoencoderKL"],
                   "text_encoder": ["transformers", "CLIPTextModel"],
                   "tokenizer": ["transformers", "CLIPTokenizer"]}, f)
    return folder
