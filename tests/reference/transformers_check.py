"""Exported language models in transformers: the same logits, the same text, the same tokens.
Run by `make check-transformers`; takes exported folders as arguments, or trains four."""
import pathlib
import sys
import tempfile

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, AutoTokenizer

from exported import SCALED, WORDS, ours, train

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
    print(f"{folder}: logits within {error:.1g}, {half} greedy tokens and the tokenizer agree")
    return model


def start_from(model, tied, tmp):
    """A bf16 folder of save_pretrained is a warm start: two steps hardly change the weights."""
    folder = tmp / "saved"
    model.to(torch.bfloat16).save_pretrained(folder)
    (tmp / "again").mkdir()
    again = train(tmp / "again", tied, steps=1, more=f', warm_start: "{folder}"')
    want = model.to(torch.float32).state_dict()
    for name, got in AutoModelForCausalLM.from_pretrained(again).state_dict().items():
        assert (got - want[name]).abs().max() < 0.02, name
    print(f"{folder}: a job has started from it")


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
        models = [check(folder, tmp) for folder in given or train_all(tmp)]
        if not given:
            start_from(models[1], True, tmp)


main()
