"""Exported language models in transformers: the same logits, the same text, the same tokens.
Run by `make check-transformers`; takes exported folders as arguments, or trains two."""
import pathlib
import sys
import tempfile

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from exported import ours, train

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


def main():
    with tempfile.TemporaryDirectory() as name:
        tmp = pathlib.Path(name)
        folders = [pathlib.Path(a) for a in sys.argv[1:]]
        for tied in [] if folders else (False, True):
            (tmp / str(tied)).mkdir()
            folders.append(train(tmp / str(tied), tied))
        for folder in folders:
            check(folder, tmp)


main()
