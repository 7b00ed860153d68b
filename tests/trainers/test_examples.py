"""The examples of trainers that need packages of PyPI, run as in examples/README.md, on real daemons."""
import pathlib
import sys

import yaml

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "integration"))
from common import make_dataset, read_safetensors  # noqa: E402
from swarm import running  # noqa: E402
from test_external import PACKAGE, write_tales  # noqa: E402

EXAMPLES = HERE.parents[1] / "examples"
ENV = [f"PYTHONPATH={PACKAGE}", "OMP_NUM_THREADS=1"]


def job_of(name, folder, env=(), **sections):
    """Writes the example's job file with this Python for its trainer and some keys changed."""
    job = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())
    for section, keys in sections.items():
        job[section].update(keys)
    own = [e for e in job["trainer"].get("env", []) if not e.startswith("TEXTS=")]
    job["trainer"].update(command=f"{sys.executable} train.py", files=str(EXAMPLES / job["trainer"]["files"]),
                          env=[*ENV, *own, *env])
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    return folder / "job.yaml"


def run(folder, job, during=None):
    """Runs the job: (its JSON at the end, the result of `during` on the swarm)."""
    with running(folder / "swarm") as s:
        for name in ("one", "two"):
            s.worker(name, "--allow-trainers")
        told = s.submit(job)
        done = s.wait_job(told, "done", 300)
        return done, during(s, told) if during else None


def export(folder, *flags):
    def weights(s, told):
        done = s.skerry("export", told, "--out", folder / "model", *flags)
        assert done.returncode == 0, done.stderr
        (file,) = (folder / "model").glob("*model.safetensors")
        return read_safetensors(file)
    return weights


def test_llama_of_transformers(tmp_path):
    """transformers' Trainer with the callback, two replicas: the loss falls, and the weights have transformers' names.  The
    state of its optimiser is handed over."""
    write_tales(tmp_path)
    job = job_of("trainer-llama", tmp_path, [f"TEXTS={tmp_path}/tales.jsonl"], recipe={"moments": "travel"},
                 outer={"rounds": 3, "steps": 20})
    done, weights = run(tmp_path, job, export(tmp_path))
    assert list(tmp_path.glob("swarm/work-*/**/external-*.state-60"))
    assert done["history"][-1]["loss"] < done["history"][0]["loss"] - 0.5, done["history"]
    assert set(weights) == {name for name, _ in small_llama().named_parameters()}


def small_llama():
    import transformers
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=257, hidden_size=64, intermediate_size=172, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=64, tie_word_embeddings=True))


def test_from_pretrained_and_back(tmp_path):
    """A folder of save_pretrained, in pieces, is version 0, and an export makes such a folder again: with the same names,
    shapes and dtypes, and from_pretrained opens it without a warning.  With an outer rate of 0 the values do not change."""
    import torch
    import transformers
    write_tales(tmp_path)
    begin = small_llama().to(torch.bfloat16)
    begin.save_pretrained(tmp_path / "begin", max_shard_size="100KB")
    transformers.GenerationConfig(max_new_tokens=7).save_pretrained(tmp_path / "begin")
    assert len(list((tmp_path / "begin").glob("*.safetensors"))) > 2
    job = job_of("trainer-llama", tmp_path, [f"TEXTS={tmp_path}/tales.jsonl", f"BEGIN={tmp_path}/begin"],
                 model={"warm_start": str(tmp_path / "begin")}, outer={"rounds": 1, "steps": 2, "lr": 0, "momentum": 0})
    run(tmp_path, job, export(tmp_path))
    end, told = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "model", output_loading_info=True)
    assert not any(told.values()), told
    want, got = begin.state_dict(), end.state_dict()
    assert {n: (t.dtype, t.shape) for n, t in got.items()} == {n: (t.dtype, t.shape) for n, t in want.items()}
    assert all(torch.equal(want[name], got[name]) for name in want)
    assert end.config.hidden_size == 64 and end.generation_config.max_new_tokens == 7


def test_lora_of_it(tmp_path):
    """Only the LoRA weights travel, in half a byte per parameter.  They begin with peft's folder, and peft opens the export."""
    import peft
    import torch
    write_tales(tmp_path)
    torch.manual_seed(0)
    base = small_llama()
    peft.get_peft_model(base, peft.LoraConfig(r=8, lora_alpha=16, task_type="CAUSAL_LM")).save_pretrained(tmp_path / "begin")
    job = job_of("trainer-lora", tmp_path, [f"TEXTS={tmp_path}/tales.jsonl"], model={"warm_start": str(tmp_path / "begin")},
                 outer={"rounds": 3, "steps": 20})
    done, weights = run(tmp_path, job, export(tmp_path))
    assert weights and all("lora_" in name for name in weights)
    torch.manual_seed(0)
    opened = peft.PeftModel.from_pretrained(small_llama(), tmp_path / "model")
    learnt = opened.state_dict()["base_model.model.model.layers.0.self_attn.q_proj.lora_B.default.weight"]
    assert learnt.abs().max() > 0 and (learnt.numpy() == weights["base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight"]).all()
    parameters = sum(w.size for w in weights.values())
    overhead = 4096  # names and shapes in a header, which a model of real size does not notice
    assert done["history"][-1]["bytes_up"] <= 2 * (0.53 * parameters + overhead)
    assert done["history"][-1]["loss"] < done["history"][0]["loss"], done["history"]


def test_unet_of_diffusers(tmp_path):
    """Two experts, each with its cluster of the pictures; each draws."""
    make_dataset(tmp_path / "data", images=128)
    job = job_of("trainer-unet", tmp_path, data={"path": "data", "shard_samples": 32}, train={"batch": 16},
                 outer={"rounds": 2, "steps": 15}, eval={"every": 1, "samples": 8})

    def draw(s, told):
        done = s.skerry("sample", told, "--path", 1, "--count", 4, "--out", tmp_path / "drawn.png")
        assert done.returncode == 0, done.stderr
        return (tmp_path / "drawn.png").read_bytes()
    done, drawn = run(tmp_path, job, draw)
    assert done["history"][-1]["loss"] < done["history"][0]["loss"] - 0.05, done["history"]
    assert drawn.startswith(b"\x89PNG")
