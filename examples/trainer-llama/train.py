"""A small Llama of Hugging Face's transformers, trained by their Trainer on a swarm.  TEXTS is a file of texts
(.jsonl or .txt).  With LORA=8 only a LoRA of that rank (peft) is trained, and travels.  With BEGIN=FOLDER it continues a
model of save_pretrained; the job names the folder as model.warm_start.  Run by hand it trains alone."""
import os

import torch
import transformers

import skerry
import skerry.hf

CONTEXT, BATCH = 64, 8
torch.manual_seed(0)  # what does not travel must be the same everywhere
if "BEGIN" in os.environ:
    model = transformers.LlamaForCausalLM.from_pretrained(os.environ["BEGIN"])
else:
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=257, hidden_size=64, intermediate_size=172, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=CONTEXT, tie_word_embeddings=True))
if "LORA" in os.environ:
    import peft
    model = peft.get_peft_model(model, peft.LoraConfig(r=int(os.environ["LORA"]), lora_alpha=16, task_type="CAUSAL_LM"))
callback = skerry.hf.Callback(model)
texts = [s.tokens.copy() for s in skerry.read_texts(os.environ["TEXTS"], CONTEXT)]


class Texts(torch.utils.data.IterableDataset):
    def __iter__(self):
        """Texts of this replica without end, drawn by the phase's seed."""
        phase = callback.phase
        mine = texts[phase.replica::max(phase.replicas, 1)]
        rng = torch.Generator().manual_seed(phase.seed % 2**63)
        while True:
            yield mine[int(torch.randint(len(mine), (), generator=rng))]


def collate(batch):
    rows = [torch.from_numpy(t).long() for t in batch]
    return {"input_ids": torch.nn.utils.rnn.pad_sequence(rows, batch_first=True),
            "labels": torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-100)}


arguments = transformers.TrainingArguments(
    output_dir="trained", max_steps=skerry.hf.FOREVER, per_device_train_batch_size=BATCH, learning_rate=3e-3,
    lr_scheduler_type="constant", report_to=[], disable_tqdm=True, remove_unused_columns=False,
    use_cpu=not torch.cuda.is_available())
transformers.Trainer(model, arguments, train_dataset=Texts(), data_collator=collate, callbacks=[callback]).train()
