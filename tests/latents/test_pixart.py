"""The DiT with captions against diffusers' PixArtTransformer2DModel: 20 random configurations, drawn
anew each run (their seed is printed), saved by save_pretrained and read as model.warm_start reads
them; outputs and all gradients.  And folders that we write are opened by diffusers."""
import json
import os
import pathlib
import random
import subprocess
import sys

import pytest
import torch
from diffusers import PixArtTransformer2DModel
from safetensors.torch import load_file, save_file

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/tools"))
import frozen_models  # noqa: E402

TOOLS = pathlib.Path(os.environ.get("SKERRY_BUILD", ROOT / "build")).resolve() / "release/tests/tools"
PROBE, FOLDER = TOOLS / "worker/pixart_probe", TOOLS / "cli/pixart_folder"
DEVICE = os.environ.get("SKERRY_DEVICE", "cpu")
SEED = int(os.environ.get("SKERRY_SEED", random.SystemRandom().randrange(1 << 31)))
N = 20
# Relative to the largest value.  f32: sums in another order.  bf16: 8 bits through every layer.
BOUNDS = {"f32": (2e-5, 1e-4), "bf16": (0.04, 0.08)}


def draw(i):
    """A random configuration that PixArt allows and Skerry supports: dim is a multiple of 16."""
    r = random.Random(SEED * 1000 + i)
    heads, head_dim = r.choice([(1, 16), (2, 16), (2, 24), (4, 16), (3, 32), (2, 72), (6, 64), (1, 128)])
    patch = r.choice([1, 2, 2, 4])
    side = patch * r.randint(2, 9)
    if i == 0:  # positions that are scaled
        patch, side = 8, 128
    return dict(config=dict(num_attention_heads=heads, attention_head_dim=head_dim,
                            in_channels=r.choice([3, 4, 16]), num_layers=r.randint(1, 4), patch_size=patch,
                            sample_size=side, caption_channels=r.choice([8, 33, 64, 96])),
                batch=r.randint(1, 5), tokens=r.choice([1, 5, 20, 77]))


def make(config, learned_variance=False):
    torch.manual_seed(SEED)
    dim = config["num_attention_heads"] * config["attention_head_dim"]
    out = config["in_channels"] * (2 if learned_variance else 1)
    model = PixArtTransformer2DModel(**config, out_channels=out, cross_attention_dim=dim, attention_bias=True,
                                     use_additional_conditions=False)
    with torch.no_grad():  # nothing zero, no value so large that it hides the others
        for name, p in model.named_parameters():
            p.copy_(torch.randn_like(p) * (0.1 if p.ndim == 1 or "table" in name else 0.7 / p[0].numel() ** 0.5))
    return model


def draw_inputs(model, batch, tokens, height=None, width=None):
    c = model.config
    shape = (batch, c.in_channels, height or c.sample_size, width or c.sample_size)
    lengths = torch.randint(1, tokens + 1, (batch,), dtype=torch.int32)
    lengths[0] = tokens
    states = torch.randn(batch, tokens, c.caption_channels)
    states *= torch.arange(tokens)[None, :, None] < lengths[:, None, None]
    return dict(x=torch.randn(shape), dpred=torch.randn(shape), t=torch.rand(batch), states=states, lengths=lengths)


def forward(model, i):
    mask = torch.arange(i["states"].shape[1])[None] < i["lengths"][:, None]
    out = model(i["x"], encoder_hidden_states=i["states"], timestep=1000 * i["t"],
                encoder_attention_mask=mask, return_dict=False)[0]
    return out[:, :model.config.in_channels]


def probe(model, weights, inputs, dtype, folder, *saved):
    save_file(inputs, folder / "in.safetensors")
    c = model.config
    args = [DEVICE, dtype, c.num_attention_heads * c.attention_head_dim, c.num_layers, c.num_attention_heads,
            c.patch_size, weights, folder / "in.safetensors", folder / "out.safetensors", *saved]
    subprocess.run([PROBE, *map(str, args)], check=True)
    return load_file(folder / "out.safetensors")


def difference(got, want):
    return ((got - want).abs().max() / want.abs().max()).item()


@pytest.mark.parametrize("i", range(N))
def test_outputs_and_gradients(i, tmp_path, worst):
    case = draw(i)
    model = make(case["config"])
    model.save_pretrained(tmp_path)
    inputs = draw_inputs(model, case["batch"], case["tokens"])
    want = forward(model, inputs)
    (want * inputs["dpred"]).sum().backward()
    gradients = {name: p.grad for name, p in model.named_parameters()}
    # Where none is to be expected (a shift of all keys, one key alone: no softmax changes) all is rounding.
    top = max(g.abs().max() for g in gradients.values()).item()
    for dtype, (forward_bound, gradient_bound) in BOUNDS.items():
        got = probe(model, tmp_path / "diffusion_pytorch_model.safetensors", inputs, dtype, tmp_path)
        off = difference(got["pred"], want.detach())
        worst(f"pixart_forward_{dtype}", off, forward_bound)
        assert off < forward_bound, f"seed {SEED}, {case}, {dtype}: outputs {off:.2g} off"
        assert {n[2:] for n in got if n.startswith("g.")} == gradients.keys()
        for name, g in gradients.items():
            if g.abs().max() < 1e-5 * top:
                assert got["g." + name].abs().max() < gradient_bound * top
                continue
            off = difference(got["g." + name], g)
            worst(f"pixart_gradients_{dtype}", off, gradient_bound)
            assert off < gradient_bound, f"seed {SEED}, {case}, {dtype}: gradient of {name} {off:.2g} off"


@pytest.mark.parametrize("i", range(N // 4))
def test_rectangles(i, tmp_path, worst):
    """Images that are not of the sample size, but no larger: their positions are right, also scaled ones."""
    case = draw(i)
    c = case["config"]
    patch, side = c["patch_size"], c["sample_size"] // c["patch_size"]
    high = random.Random(SEED + i).randint(1, side)
    height, width = high * patch, (side * side // high) * patch
    if high > side // 2 and i % 2:
        height, width = width, height
    model = make(c)
    model.save_pretrained(tmp_path)
    inputs = draw_inputs(model, case["batch"], case["tokens"], height, width)
    want = forward(model, inputs)
    got = probe(model, tmp_path / "diffusion_pytorch_model.safetensors",
                dict(inputs, square=torch.zeros(c["sample_size"])), "f32", tmp_path)
    off = difference(got["pred"], want.detach())
    worst("pixart_rectangles", off, BOUNDS["f32"][0])
    assert off < BOUNDS["f32"][0], f"seed {SEED}, {case}, {width} x {height}: outputs {off:.2g} off"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_reads_what_was_released(dtype, tmp_path):
    """The released PixArt models also predict a variance, come in any dtype and hold the original's null caption."""
    make(draw(3)["config"], learned_variance=True).to(dtype).save_pretrained(tmp_path / "model")
    weights = tmp_path / "model/diffusion_pytorch_model.safetensors"
    save_file({**load_file(weights), "caption_projection.y_embedding": torch.randn(7, 4).to(dtype)}, weights)
    model = PixArtTransformer2DModel.from_pretrained(tmp_path / "model", torch_dtype=torch.float32)
    assert folder_tool("check", model, 7, tmp_path / "model") is None
    inputs = draw_inputs(model, 3, 7)
    got = probe(model, weights, inputs, "f32", tmp_path)
    off = difference(got["pred"], forward(model, inputs).detach())
    assert off < 2e-5, f"seed {SEED}: outputs {off:.2g} off"


def folder_tool(what, model, tokens, folder):
    """Runs write or check: None, or its error."""
    c = model.config
    job = folder.parent / "job.yaml"
    job.write_text(f"""name: drawn
data: {{path: x, image_size: {8 * c.sample_size}}}
encoders: {{vae: x, text: x}}
model: {{dim: {c.num_attention_heads * c.attention_head_dim}, depth: {c.num_layers},
        heads: {c.num_attention_heads}, patch: {c.patch_size}}}
train: {{batch: 4}}
outer: {{rounds: 1, steps: 1}}
""")
    args = [FOLDER, what, job, c.in_channels, c.sample_size, c.caption_channels, tokens, folder]
    done = subprocess.run(list(map(str, args)), capture_output=True, text=True)
    return done.stderr if done.returncode else None


@pytest.mark.parametrize("i", range(0, N, 5))
def test_export_opens(i, tmp_path, worst):
    case = draw(i)
    model = make(case["config"])
    model.save_pretrained(tmp_path / "theirs")
    assert folder_tool("check", model, case["tokens"], tmp_path / "theirs") is None
    ours = tmp_path / "ours"
    ours.mkdir()
    assert folder_tool("write", model, case["tokens"], ours) is None
    inputs = draw_inputs(model, case["batch"], case["tokens"])
    weights = "diffusion_pytorch_model.safetensors"
    got = probe(model, tmp_path / "theirs" / weights, inputs, "f32", tmp_path, ours / weights)
    assert folder_tool("check", model, case["tokens"], ours) is None
    opened, report = PixArtTransformer2DModel.from_pretrained(ours, output_loading_info=True)
    assert not any(report.values()), report
    off = difference(got["pred"], forward(opened, inputs).detach())
    worst("diffusers_opens", off, 2e-5)
    assert off < 2e-5, f"seed {SEED}, {case}: outputs {off:.2g} off"


def test_drawing_as_documented(tmp_path, monkeypatch):
    """The lines of docs/encoders.md run, and they integrate the velocity from t = 1 to 0."""
    words = frozen_models.clip_tokenizer(tmp_path / "stable-diffusion/tokenizer", ["red", "bird"])
    frozen_models.vae(tmp_path / "stable-diffusion/vae")
    frozen_models.clip(tmp_path / "stable-diffusion/text_encoder", words)
    model = make({**draw(2)["config"], "in_channels": 4, "sample_size": 8, "patch_size": 2, "caption_channels": 32})
    model.save_pretrained(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs/encoders.md").read_text()
    x, randn, names = torch.randn(1, 4, 8, 8), torch.randn, {}
    monkeypatch.setattr(torch, "randn", lambda *shape, **how: x if shape == x.shape else randn(*shape, **how))
    exec(text.split("```python\n")[1].split("```")[0], names)
    states, mask = names["states"], names["words"].attention_mask
    times = [float(t) / 1000 for t in names["scheduler"].timesteps] + [0.0]
    assert times[0] == 1 and len(times) == 31
    with torch.no_grad():
        for t, after in zip(times, times[1:]):
            told, null = names["model"](x.repeat(2, 1, 1, 1), encoder_hidden_states=states, encoder_attention_mask=mask,
                                        timestep=torch.full((2,), 1000 * t)).sample.chunk(2)
            x = x + (after - t) * (null + 3 * (told - null))
    off = difference(names["x"], x)
    assert off < 1e-4, f"seed {SEED}: {off:.2g} off"
    assert names["picture"].shape == (1, 3, 16, 16) and names["picture"].isfinite().all()


def test_folders_that_do_not_fit(tmp_path):
    model = make(draw(1)["config"])
    config = dict(model.config)
    model.save_pretrained(tmp_path / "model")
    text = (tmp_path / "model/config.json").read_text()

    def refused(word, **changes):
        (tmp_path / "model/config.json").write_text(json.dumps({**json.loads(text), **changes}))
        said = folder_tool("check", model, 5, tmp_path / "model")
        assert said and word in said and said.count("\n") == 1, (word, said)

    refused("FluxTransformer2DModel", _class_name="FluxTransformer2DModel")
    refused("use_additional_conditions", use_additional_conditions=True)
    refused("norm_type", norm_type="ada_norm_zero")
    refused("num_layers", num_layers=config["num_layers"] + 1)
    refused("in_channels", in_channels=config["in_channels"] + 1)
    refused("caption_channels", caption_channels=config["caption_channels"] + 1)
    refused("interpolation_scale", interpolation_scale=3)
