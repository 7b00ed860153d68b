"""Exported language models in transformers: the same logits, the same text, the same tokens; and small random ones
of every class that a job can start from, also the same gradients.
Run by `make check-transformers`; takes exported folders as arguments, or trains four."""
import pathlib
import shutil
import subprocess
import sys
import tempfile

import torch
from huggingface_hub import ModelCard
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from dit import read_safetensors
from exported import PROBE, SCALED, WORDS, ours, sizes_of, train

TEXT = "Hello, wörld ☃\n\t 12 a\0b"


def check(folder, tmp):
    model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(info[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    model.eval()
    got = ours(folder, tmp / "ours.safetensors")
    tokens = got["tokens"].long()
    with torch.no_grad():
        want = model(tokens[:, :-1]).logits
    error = ((got["logits"] - want).abs().max() / want.abs().max()).item()
    assert error < 2e-5, f"logits: relative error {error:.2g}"

    half = len(got["text"])
    prompt = tokens[:1, :half]
    text = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=half, do_sample=False,
                          eos_token_id=None)[0, half:]
    assert text.tolist() == got["text"].tolist()

    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(TEXT)["input_ids"]
    if model.config.vocab_size == 257:  # bytes
        assert ids == [256, *TEXT.encode()]
    assert tokenizer.decode(ids, skip_special_tokens=True) == TEXT
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (model.config.bos_token_id, model.config.eos_token_id)
    if (folder / "README.md").exists():  # of an export
        about = ModelCard.load(folder / "README.md").data
        assert (about.library_name, about.pipeline_tag) == ("transformers", "text-generation"), about
    print(f"{folder}: logits within {error:.1g}, {half} greedy tokens and the tokenizer agree")
    return model


def start_from(model, tied, tmp, more=""):
    """A bf16 folder of save_pretrained is a warm start: two steps hardly change the weights."""
    folder = tmp / "saved"
    model.to(torch.bfloat16).save_pretrained(folder)
    (tmp / "again").mkdir()
    again = train(tmp / "again", tied, steps=1, more=f', warm_start: "{folder}"{more}')
    check(again, tmp)
    want, trained = model.to(torch.float32).state_dict(), AutoModelForCausalLM.from_pretrained(again)
    assert type(trained) is type(model)
    for name, got in trained.state_dict().items():
        assert (got - want[name]).abs().max() < 0.02, name
    print(f"{folder}: a job has started from it")


# Sizes are those of exported.py's job; heads are wider than dim, and the embedding has rows for no token.
SIZES = dict(hidden_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=128, head_dim=24,
             vocab_size=272, max_position_embeddings=64, rms_norm_eps=1e-5, bos_token_id=256, eos_token_id=256, pad_token_id=None,
             initializer_range=0.1, rope_parameters={"rope_type": "default", "rope_theta": 5000.0})
LINEAR = {"rope_type": "linear", "factor": 4.0, "rope_theta": 5000.0}
RELATIVES = [("llama", False, {}), ("llama", True, dict(rope_parameters=LINEAR)), ("mistral", False, dict(sliding_window=None)), ("mistral", True, dict(sliding_window=64)),
             ("qwen2", True, {}), ("qwen2", False, {}), ("qwen3", True, {}), ("qwen3", False, {}),
             ("smollm3", True, dict(no_rope_layer_interval=2)), ("smollm3", False, dict(no_rope_layer_interval=2))]
KEYS = {"qwen2": ", qkv_bias: true", "qwen3": ", qk_norm: true", "smollm3": ", no_rope_layer_interval: 2"}


def close(got, want, rtol, what):
    error = ((got - want).abs().max() / want.abs().max().clamp_min(1e-8)).item()
    assert error < rtol, f"{what}: relative error {error:.2g}"


def gradients(folder, tmp):
    """The probe's rows of several documents, whose weights are its own."""
    subprocess.run([PROBE, "train", "cpu", "f32", sizes_of(folder), "1", tmp / "train.safetensors"], check=True)
    got = read_safetensors(tmp / "train.safetensors")[0]
    tokens, start, pos, target = (got[f"0.{k}"].long() for k in ("tokens", "start", "pos", "target"))
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    state = {k[3:]: v for k, v in got.items() if k.startswith("w0.")}
    model.load_state_dict(state, strict=not model.config.tie_word_embeddings)
    i = torch.arange(tokens.shape[1] - 1)
    visible = (i[None, None, :] >= start[:, :, None]) & (i[None, None, :] <= i[None, :, None])
    mask = torch.zeros(visible.shape).masked_fill(~visible, torch.finfo(torch.float32).min)[:, None]
    logits = model(tokens[:, :-1], attention_mask=mask, position_ids=pos).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=-1)
    loss.backward()
    close(got["logits"], logits.detach(), 2e-5, "logits")
    close(got["losses"][0], loss.detach(), 1e-5, "loss")
    named = dict(model.named_parameters())
    assert named.keys() == state.keys()
    for name, p in named.items():
        close(got[f"g0.{name}"], p.grad, 1e-4, f"gradient of {name}")


def relative(kind, tied, more, exported, tmp):
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, tie_word_embeddings=tied, **{**SIZES, **more}))
    for name, p in model.named_parameters():
        if name.endswith(("bias", "q_norm.weight", "k_norm.weight")):
            torch.nn.init.normal_(p, mean=float(p.mean()), std=0.5)
    folder = tmp / "random"
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(exported / name, folder / name)
    model = check(folder, tmp)
    gradients(folder, tmp)
    scaled = ", rope_scaling: {rope_type: linear, factor: 4}" if "rope_parameters" in more else ""
    start_from(model, tied, tmp, ", head_dim: 24, vocab: 272" + KEYS.get(kind, "") + scaled)
    print(f"{kind}: forward, gradients and a job that starts from it agree")


def write_tokenizer(path):
    """A byte-level BPE tokenizer like that of GPT-2."""
    t = Tokenizer(models.BPE())
    t.pre_tokenizer, t.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<|endoftext|>"],
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    t.train_from_iterator([" ".join(WORDS)] * 9, trainer)
    t.save(str(path))


def train_all(tmp):
    for name in ("head", "tied", "bpe", "scaled"):
        (tmp / name).mkdir()
    write_tokenizer(tmp / "bpe/gpt.json")
    return [train(tmp / "head", False), train(tmp / "tied", True),
            train(tmp / "bpe", False, data=", tokenizer: gpt.json"), train(tmp / "scaled", False, more=SCALED)]


def main():
    with tempfile.TemporaryDirectory() as name:
        tmp = pathlib.Path(name)
        given = [pathlib.Path(a) for a in sys.argv[1:]]
        folders = given or train_all(tmp)
        models = [check(folder, tmp) for folder in folders]
        if not given:
            start_from(models[1], True, tmp)
        for n, (kind, tied, more) in enumerate([] if given else RELATIVES):
            (tmp / str(n)).mkdir()
            relative(kind, tied, more, folders[0], tmp / str(n))


main()
