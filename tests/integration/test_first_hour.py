"""The first hour of a new user: commands that estimate a job's needs before it runs, and clear refusals."""
import contextlib
import fcntl
import json
import os
import pty
import re
import shutil
import struct
import subprocess
import termios

import pytest
import yaml

from common import BIN, HANGS, make_dataset, read_safetensors, skerry, write_job
import frozen_models  # tests/tools, where common looks


def test_check_predicts(tmp_path):
    job = write_job(tmp_path, replicas=3)
    done = skerry("check", job, "--link", "8Mbit", "--workers", "2")
    assert done.returncode == 0, done.stderr
    lines = dict(line.split("  ", 1) for line in done.stdout.splitlines()[1:] if line[0] != " ")
    assert "for each held-out loss and grid of samples, 2 in the job" in done.stdout
    assert done.stdout.splitlines()[0] == f"{job}: fine; 96 images in 2 classes (9 held out)"
    assert set(lines) == {"model", "memory", "a step", "a round", "network", "the job", "disk"}, done.stdout
    assert "3 phases on 2 workers" in lines["a round"]
    assert "8 Mbit/s" in lines["network"] and "e3m0" in lines["network"]
    said = json.loads(skerry("check", job, "--json", "--link", "8Mbit").stdout)
    assert said["up_bytes"] == said["down_bytes"] > said["parameters"] / 2
    # three phases, both ways, a million bytes a second
    assert abs(said["link_s"] - 6 * said["up_bytes"] / 1e6) < 1e-6
    assert said["seen"] == 3 * 8 * 4 * 2 and 0 < said["step_s"] < said["seconds"]
    here = skerry("check", job, "--here")
    assert "3 phases on 2 workers on this machine" in here.stdout and "1 thread" in here.stdout, here.stdout + here.stderr


def test_check_measures_texts_and_routers(tmp_path):
    text = tmp_path / "t.txt"
    text.write_text("a line of a book\n" * 3000, encoding="utf-8")
    job = tmp_path / "text.yaml"
    job.write_text("name: t\ndata: {path: t.txt}\nmodel: {type: llama, dim: 32, depth: 2, heads: 2, context: 64}\n"
                   "train: {batch: 4}\nouter: {rounds: 2, steps: 3}\n", encoding="utf-8")
    said = json.loads(skerry("check", job, "--json").stdout)
    assert said["workers"] == 2 and said["seen"] == 2 * 4 * 3 * 2 and said["step_s"] > 0  # as many as `skerry run` has
    assert json.loads(skerry("check", job, "--json", "--workers", 1).stdout)["seen"] == 4 * 3 * 2
    done = subprocess.run([os.path.join(BIN, "workerd"), "measure", job, "--together", "3", "--threads", "1"], capture_output=True, text=True,
                          check=False, timeout=HANGS)
    assert json.loads(done.stdout)["together"] == 3, done.stderr
    path = write_job(tmp_path)
    with open(path, encoding="utf-8") as f:
        changed = f.read().replace("recipe: {name: diloco, replicas: 2}", "recipe: {name: ddm, experts: 2}")
    with open(path, "w", encoding="utf-8") as f:
        f.write(changed)
    done = skerry("check", path)
    assert done.returncode == 0 and "its router" in done.stdout and "3 phases on 3 workers" in done.stdout, done.stdout


def test_measure_reads_a_pipe_that_has_no_name(tmp_path):
    with open(write_job(tmp_path), encoding="utf-8") as f:
        done = subprocess.run([os.path.join(BIN, "workerd"), "measure", "-", "--classes", "2"], stdin=f, capture_output=True, text=True, check=False, timeout=HANGS)
    assert json.loads(done.stdout)["step_s"] > 0, done.stderr
    done = subprocess.run([os.path.join(BIN, "workerd"), "measure", "-", "--classes", "2"], input="nonsense", capture_output=True, text=True, check=False, timeout=HANGS)
    assert done.returncode != 0 and "standard input" in done.stderr, done.stderr


def test_check_without_workerd_still_checks(tmp_path):
    alone = tmp_path / "bin"
    alone.mkdir()
    shutil.copy(os.path.join(BIN, "skerry"), alone)
    job = write_job(tmp_path)
    done = subprocess.run([alone / "skerry", "check", job], capture_output=True, text=True, check=False, timeout=HANGS)
    assert done.returncode == 0 and done.stdout == f"{job}: fine; 96 images in 2 classes (9 held out)\n", done.stderr
    assert done.stderr.startswith("nothing is predicted: ") and len(done.stderr.splitlines()) == 1
    done = subprocess.run([alone / "skerry", "check", job, "--json"], capture_output=True, text=True, check=False, timeout=HANGS)
    assert done.returncode == 0 and "workerd" in json.loads(done.stdout)["refused"] and not done.stderr, done.stderr


def test_a_temporary_directory_elsewhere(tmp_path):
    """Of a container whose own disk is read-only; what this directory has is still reached from within."""
    write_job(tmp_path)
    done = subprocess.run(["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", 'mount -t tmpfs -o ro none /tmp && exec "$@"', "sh",
                           os.path.join(BIN, "skerry"), "check", "job.yaml"],
                          env={**os.environ, "TMPDIR": "."}, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=HANGS)
    assert done.returncode == 0 and not done.stderr and "a step" in done.stdout, done.stdout + done.stderr


def test_a_temporary_directory_that_is_full(tmp_path):
    write_job(tmp_path)
    done = subprocess.run(["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", 'mount -t tmpfs -o size=8k none /mnt && exec "$@"', "sh",
                           os.path.join(BIN, "skerry"), "check", "job.yaml"],
                          env={**os.environ, "TMPDIR": "/mnt"}, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=HANGS)
    assert done.returncode == 1 and "No space left on device; set TMPDIR to a directory with more space" in done.stderr, done.stderr


def test_a_wrong_link_is_a_wrong_command_line(tmp_path):
    done = skerry("check", write_job(tmp_path), "--link", "fast")
    assert done.returncode == 2 and "--link" in done.stderr, done.stderr


def test_measure_refuses_what_does_not_fit(tmp_path):
    make_dataset(tmp_path / "data")
    job = tmp_path / "job.yaml"
    job.write_text("name: huge\ndata: {path: data, image_size: 64}\nmodel: {patch: 2, dim: 8192, depth: 64, heads: 64}\n"
                   "train: {batch: 8}\nouter: {rounds: 2, steps: 3}\n", encoding="utf-8")
    done = skerry("check", job)
    assert done.returncode == 0 and "time      not known, because it does not fit here: " in done.stdout, done.stdout + done.stderr


def new(tmp_path, *args):
    return skerry("new", *args, cwd=tmp_path)


def test_new_writes_a_job_that_runs(tmp_path):
    make_dataset(tmp_path / "pics", classes=2, images=48)
    done = new(tmp_path, "first.yaml", "--images", "pics", "--minutes", "1", "--workers", "1", "--image-size", "16")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("first.yaml: a model of ") and len(done.stdout.splitlines()) == 1
    assert done.stdout.endswith(" on 1 worker like this machine; `skerry submit first.yaml` starts it\n")
    path = tmp_path / "first.yaml"
    text = path.read_text(encoding="utf-8")
    assert all("#" in line or line.rstrip().endswith(":") or line.startswith(("name:", "  path:"))
               for line in text.splitlines() if line.strip()), text
    short = "\n".join(line.replace(line.split("#")[0], "  steps: 1 ") if line.startswith("  steps:") else line
                      for line in text.splitlines())
    path.write_text(short, encoding="utf-8")
    ran = skerry("run", path, "--workers", "1", "--out", tmp_path / "out")
    assert ran.returncode == 0, ran.stderr
    assert "no worker is here" not in ran.stderr, "one is on its way"
    assert {(tmp_path / name).stat().st_mode & 0o777 for name in ("first.yaml", "out/samples.png", "out/loss.svg", "out/model/model.safetensors")} == {0o644}
    again = new(tmp_path, "first", "--images", "pics")
    assert again.returncode == 1 and "first.yaml is there already" in again.stderr
    assert path.read_text(encoding="utf-8") == short


def test_new_takes_one_picture_and_says_what_it_leaves(tmp_path):
    make_dataset(tmp_path / "pics", classes=1, images=1)
    folder = next(p for p in (tmp_path / "pics").iterdir() if p.is_dir())
    (folder / "old.gif").write_bytes(b"GIF89a")
    (folder / "torn.png").write_bytes(b"no picture")
    done = new(tmp_path, "one", "--images", "pics", "--minutes", "1", "--image-size", "16")
    assert done.returncode == 0 and done.stderr.startswith("left out: 1 .gif file;"), done.stderr
    assert f"1 image file cannot be read and is left out:\n  {folder.name}/torn.png: not a JPEG" in done.stderr, done.stderr
    assert done.stdout.endswith(" on 2 workers on this machine; `skerry run one.yaml` starts it\n")
    assert "skerry check one.yaml --here --workers 2 " in (tmp_path / "one.yaml").read_text(encoding="utf-8")
    done = skerry("check", tmp_path / "one.yaml")
    assert done.returncode == 0 and "1 image in 1 class" in done.stdout, done.stdout + done.stderr
    assert done.stderr.startswith("left out: 1 .gif file;"), done.stderr
    done = skerry("new", "odd", "--images", os.fsdecode(b"pi\xff"), cwd=tmp_path, errors="replace")
    assert done.returncode == 2 and "is not UTF-8" in done.stderr and not (tmp_path / "odd.yaml").exists(), done.stderr


def test_new_for_text(tmp_path):
    (tmp_path / "book.txt").write_text("it was a dark and stormy night, and so on\n" * 2000, encoding="utf-8")
    done = new(tmp_path, "book", "--text", "book.txt", "--minutes", "1")
    assert done.returncode == 0, done.stderr
    assert "type: llama" in (tmp_path / "book.yaml").read_text(encoding="utf-8") and not done.stderr
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "note.txt").write_text("one short text", encoding="utf-8")
    (tmp_path / "texts" / "note.md").write_text("another", encoding="utf-8")
    done = new(tmp_path, "note", "--text", "texts", "--minutes", "1")
    assert done.returncode == 0 and done.stderr.startswith("left out: 1 name of other kinds;"), done.stderr
    assert skerry("check", tmp_path / "note.yaml").returncode == 0, "nothing is held out of a single short text"
    assert skerry("check", tmp_path / "book.yaml").returncode == 0


MISTRAL = dict(architectures=["MistralForCausalLM"], model_type="mistral", sliding_window=None)
QWEN2 = dict(architectures=["Qwen2ForCausalLM"], model_type="qwen2", use_sliding_window=False, sliding_window=100, head_dim=16, bias=True, padding=6)

QWEN3 = dict(architectures=["Qwen3ForCausalLM"], model_type="qwen3", use_sliding_window=False, sliding_window=None, attention_bias=False, head_dim=16, norms=True)
SMOLLM3 = dict(architectures=["SmolLM3ForCausalLM"], model_type="smollm3", no_rope_layers=[1, 0], no_rope_layer_interval=2)


@pytest.mark.parametrize("kind, keys", [({}, {}), (MISTRAL, {}), (QWEN2, {"head_dim": 16, "qkv_bias": True, "vocab": 264}),
                                        (QWEN3, {"head_dim": 16, "qk_norm": True}), (SMOLLM3, {"no_rope_layer_interval": 2})],
                         ids=["llama", "mistral", "qwen2", "qwen3", "smollm3"])
def test_new_from_a_model(tmp_path, kind, keys):
    """Its sizes and its tokenizer are taken, its shards joined, and what it learns comes back as the model that it was."""
    frozen_models.llama(tmp_path / "chat", **kind)
    (tmp_path / "chat" / "checkpoint-500").mkdir()
    (tmp_path / "chat" / "checkpoint-500" / "tokenizer.json").write_text("of another", encoding="utf-8")
    (tmp_path / "book.txt").write_text("it was a dark and stormy night, and so on\n" * 2000, encoding="utf-8")
    done = new(tmp_path, "tuned", "--text", "book.txt", "--from", "chat", "--minutes", "1")
    assert done.returncode == 0 and not done.stderr, done.stderr
    path = tmp_path / "tuned.yaml"
    job = yaml.safe_load(path.read_text(encoding="utf-8"))
    job["model"]["norm_eps"] = float(job["model"]["norm_eps"])  # PyYAML's floats have a point
    assert job["model"] == {"type": "llama", "warm_start": "chat", "dim": 32, "depth": 2, "heads": 4, "kv_heads": 2, "ffn": 48, "context": 512,
                            "rope_theta": 20000, "norm_eps": 1e-6, "tied": False, **keys}, job
    assert job["data"]["tokenizer"] == "chat/tokenizer.json"
    job["outer"] = {"rounds": 1, "steps": 1}
    job["eval"] = {"every": 0}
    path.write_text(json.dumps(job), encoding="utf-8")
    ran = skerry("run", path, "--workers", "1", "--out", tmp_path / "out")
    assert ran.returncode == 0, ran.stderr
    model, chat = tmp_path / "out" / "model", tmp_path / "chat"
    config = json.loads((chat / "config.json").read_text(encoding="utf-8"))
    assert config.pop("dtype") == "bfloat16"
    assert json.loads((model / "config.json").read_text(encoding="utf-8")) == {**config, "torch_dtype": "float32"}
    companions = ("generation_config.json", "tokenizer_config.json", "tokenizer.json")
    assert all((model / name).read_bytes() == (chat / name).read_bytes() for name in companions)
    assert sorted(p.name for p in model.iterdir()) == sorted((".skerry", "README.md", "config.json", "model.safetensors", *companions))
    before, after = {}, read_safetensors(model / "model.safetensors")
    for piece in chat.glob("*.safetensors"):
        before.update(read_safetensors(piece))
    assert before.keys() == after.keys()
    assert all(abs(before[name] - after[name]).max() < 0.02 for name in before), "one step of two replicas"


def test_new_says_what_a_model_decides(tmp_path):
    """A window below the usual context, for which `new` has no flag, and tokens that nobody has named; a quantised model is none to train."""
    chat, window = tmp_path / "chat", {**MISTRAL, "sliding_window": 100}
    frozen_models.llama(chat, padding=-1, **window)  # as many tokens as bytes have
    (chat / "tokenizer.json").unlink()
    (tmp_path / "book.txt").write_text("it was a dark and stormy night, and so on\n" * 2000, encoding="utf-8")
    done = new(tmp_path, "tuned", "--text", "book.txt", "--from", "chat", "--minutes", "1")
    assert done.returncode == 0, done.stderr
    assert yaml.safe_load((tmp_path / "tuned.yaml").read_text(encoding="utf-8"))["model"]["context"] == 100
    assert "--from: model.context is 100, as chat/config.json has no more" in done.stderr, done.stderr
    assert "--from: chat has no tokenizer.json and no tokenizer.model, so the tokens are bytes" in done.stderr, done.stderr
    frozen_models.llama(chat)  # a tokenizer whose ends have names of its own
    tokenizer = chat / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text(encoding="utf-8").replace("<|endoftext|>", "<|begin|>"), encoding="utf-8")
    done = new(tmp_path, "ends", "--text", "book.txt", "--from", "chat", "--minutes", "1")
    assert done.returncode == 0 and "--from: no token of chat/tokenizer.json begins or ends a text" in done.stderr, done.stderr
    assert yaml.safe_load((tmp_path / "ends.yaml").read_text(encoding="utf-8"))["sample"]["prompt"] == "The"
    frozen_models.llama(chat, quantization_config={"quant_method": "fp8"}, **window)
    refused = "chat/config.json has a quantization_config (fp8): quantised weights cannot be trained on;"
    again = new(tmp_path, "again", "--text", "book.txt", "--from", "chat")
    assert again.returncode != 0 and f"--from: {refused}" in again.stderr, again.stderr
    checked = skerry("check", tmp_path / "tuned.yaml")
    assert checked.returncode != 0 and f"model.warm_start: {tmp_path}/{refused}" in checked.stderr, checked.stderr


def test_new_for_captions(tmp_path):
    words = frozen_models.pipeline(tmp_path / "pipe", ["a", "red", "blue"])
    make_dataset(tmp_path / "pics", classes=2, images=24, size=32)
    for image in (tmp_path / "pics").glob("*/*.png"):
        odd = "it\u0092s\n" if image.stem.endswith("0") else ""  # YAML does not take it
        image.with_suffix(".txt").write_text(f"{odd}a {image.parent.name}", encoding="utf-8")
    done = new(tmp_path, "told", "--captions", "pics", "--encoders", words, "--minutes", "1")
    assert done.returncode == 0, done.stderr
    prompts = yaml.safe_load((tmp_path / "told.yaml").read_text(encoding="utf-8"))["sample"]["prompts"]
    assert sorted(prompts) == sorted(f"a {p.name}" for p in (tmp_path / "pics").iterdir())
    (tmp_path / "told.yaml").write_text((tmp_path / "told.yaml").read_text(encoding="utf-8").replace(f'"{prompts[0]}"', f'"{"a " * 500}"'),
                                        encoding="utf-8")
    checked = skerry("check", tmp_path / "told.yaml", "--here", "--json")
    assert checked.returncode == 0 and json.loads(checked.stdout)["step_s"] > 0, checked.stderr
    assert checked.stderr.startswith("sample.prompts: caption 1 is cut by 4"), checked.stderr
    assert len(checked.stderr.splitlines()) == 1, "the other is short enough"
    odd = new(tmp_path, "odd", "--captions", "pics", "--encoders", words, "--image-size", "34")
    assert odd.returncode == 4 and "skerry: --image-size: model.patch is 2, which does not divide the 17 x 17" in odd.stderr, odd.stderr


def on_terminal(columns, *args, cwd):
    """What a command draws on a terminal of this width: its lines in turn, each in place of the one before."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("4H", 24, columns, 0, 0))
    done = subprocess.Popen([os.path.join(BIN, "skerry"), *map(str, args)], cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=slave, text=True,
                            env={**os.environ, "TERM": "xterm"})
    os.close(slave)
    drawn = b""
    with contextlib.suppress(OSError):  # of Linux, once nobody writes any more
        while part := os.read(master, 4096):
            drawn += part
    os.close(master)
    assert done.wait(HANGS) == 0, drawn
    return done.stdout.read(), re.split("\r\x1b\\[K|\r\n", drawn.decode())


def test_what_takes_seconds_is_said_on_a_terminal(tmp_path):
    make_dataset(tmp_path / "pics", classes=2, images=48)
    said, drawn = on_terminal(40, "new", "first", "--images", "pics", "--minutes", "1", "--image-size", "16", cwd=tmp_path)
    assert said.startswith("first.yaml: a model of ") and len(said.splitlines()) == 1
    assert "measuring training steps on this machin" in drawn and not drawn[-1] and max(map(len, drawn)) < 40, drawn
    said, drawn = on_terminal(100, "check", "first.yaml", cwd=tmp_path)
    assert "reading the data" in drawn and not drawn[-1], drawn
    assert any(re.fullmatch("measuring training steps on this machine: a model of width [0-9]+ and [0-9]+ blocks", line) for line in drawn), drawn


def test_new_says_what_is_wrong(tmp_path):
    for args, status, words in (
            (("a",), 2, "--images DIR, --text FILE, --captions DIR"),
            (("a", "--images", "x", "--text", "y"), 2, "expected one of"),
            (("a/b c", "--images", "x"), 2, "not a name for a job: expected 1 to 64 of A-Z a-z 0-9 . _ -, not starting with . or -; did you mean 'b-c'?"),
            (("été", "--images", "x"), 2, "not starting with . or -\n"),
            (("a", "--captions", "x"), 2, "--encoders"),
            (("a", "--images", "x", "--encoders", "y"), 2, "--encoders is for --captions"),
            (("a", "--images", "nowhere"), 4, "--images: there is no dataset at nowhere")):
        done = new(tmp_path, *args)
        assert done.returncode == status and words in done.stderr, (args, done.stderr)
        assert not list(tmp_path.iterdir())


def test_new_measures_only_what_it_can_write_down(tmp_path):
    make_dataset(tmp_path / "pics", classes=1, images=48)
    done = subprocess.run(["unshare", "--user", "--map-root-user", "--mount", "sh", "-c",
                           'mount -t tmpfs -o ro none /mnt && cd /mnt && exec "$@"', "sh", f"{BIN}/skerry", "new", "job", "--images", tmp_path / "pics"],
                          capture_output=True, text=True, check=False, timeout=HANGS)
    assert done.returncode == 1 and "job.yaml" in done.stderr and "Read-only file system" in done.stderr, done.stderr
    assert "go to one that you may write to" in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr


def test_results_do_not_go_among_the_data(tmp_path):
    """A job often has the name of its data folder: the job file of `new` must not put results there."""
    make_dataset(tmp_path / "pics", classes=2, images=8)
    assert new(tmp_path, "pics", "--images", "pics", "--minutes", "1", "--image-size", "16").returncode == 0
    said = next(line for line in (tmp_path / "pics.yaml").read_text(encoding="utf-8").splitlines() if "skerry run" in line)
    assert said.split("--out ")[1].split()[0] == "pics.out"
    before = sorted(p for p in tmp_path.rglob("*"))
    for out in ("pics", "pics/", "./pics/deeper/out", tmp_path / "pics" / "x"):
        done = skerry("run", "pics.yaml", "--out", out, cwd=tmp_path)
        assert done.returncode == 2 and "would be taken for data" in done.stderr, (out, done.stderr)
    assert sorted(p for p in tmp_path.rglob("*")) == before


@pytest.mark.parametrize("prefix", [
    ["taskset", "-c", str(min(os.sched_getaffinity(0)))],
    ["prlimit", "--as=2147483648", "--nofile=64"],
    ["setsid", "-w", "env", "-u", "TERM"],
    ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", 'mount -t tmpfs -o ro none /dev && exec "$@" <&-', "sh"],
    ["unshare", "--user", "env", "HOME=/nonexistent"],
    ["env", "SKERRY_CPU_ISA=generic"],
], ids=["one core", "2 GiB and 64 files", "no terminal", "no /dev and no input", "nobody", "slow CPU"])
def test_run_in_narrow_places(tmp_path, prefix):
    """In a container, on a small machine, over ssh without a terminal; `nobody` is a user without a name, home or rights."""
    out = tmp_path / "out"
    done = subprocess.run([*prefix, f"{BIN}/skerry", "run", write_job(tmp_path), "--workers", "2", "--out", out],
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=HANGS)
    assert done.returncode == 0, done.stderr
    assert (out / "model" / "model.safetensors").exists()
    assert "\x1b" not in done.stdout + done.stderr and "\r" not in done.stdout + done.stderr
