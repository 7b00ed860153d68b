"""`make bench` and bench-card when their time is used up: they give up figures that do not end, with the reason, and end
their processes."""
import json
import os
import re
import signal
import subprocess
import sys
import time
import types

import pytest

from common import BIN, children_of

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", where) for where in ("bench", "quality", "gpu")]
import bench  # noqa: E402
import beyond  # noqa: E402
import card  # noqa: E402
import figures as cards  # noqa: E402
import first  # noqa: E402
import lab  # noqa: E402
import pipeline  # noqa: E402
from processor import cpuinfo, processor  # noqa: E402

PEER = """#!{python}
import os, signal, sys, time
print("ready fake", flush=True)
for line in sys.stdin:
    if {steps} == 0:
        time.sleep(0.1)  # by now whoever asks waits for the answer, most likely
        os.kill(os.getppid(), signal.SIGALRM)  # whose time is used up
        time.sleep(1000)
    steps = {steps} - 1
    print("{seconds}", flush=True)
"""


def program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def fig(monkeypatch):
    monkeypatch.setattr(signal, "alarm", lambda s: signal.setitimer(signal.ITIMER_REAL, s / 20))  # limits of seconds, sooner
    yield bench.Figures()
    assert not children_of(os.getpid())


def nobody_is_slow(monkeypatch):
    """Switches off the alarm, so that only the test's programs decide when time is used up."""
    monkeypatch.setattr(signal, "alarm", lambda s: None)


def race(fig, tmp_path, steps):
    """The row of a race against a PyTorch that answers so many times and then works for ever."""
    answers = PEER.format(python=sys.executable, seconds=1.5, steps="steps").replace("for line", f"steps = {steps}\nfor line")
    theirs = program(tmp_path / "torch", answers)
    ours = tmp_path / "release" / "tests" / "bench" / "worker" / "bench_train"
    program(ours, PEER.format(python=sys.executable, seconds=1.0, steps=-1))
    with bench.limit(10):
        bench.train_vs_torch(fig, types.SimpleNamespace(torch=theirs, build=str(tmp_path)), "f32", ">=1.4")
    (row,) = fig.rows
    return row


@pytest.mark.parametrize("steps, value, words", [
    (2, None, "not measured within its 10 s"),
    (3, 1.5, "3 alternations of 8, as its time was used up"),
    (8, 1.5, "192.0 against 128.0"),
])
def test_a_race_without_an_end(fig, monkeypatch, tmp_path, steps, value, words):
    nobody_is_slow(monkeypatch)
    row = race(fig, tmp_path, steps)
    assert row["value"] == value and words in row["note"] and (value is not None or not row["holds"])


def test_a_program_without_an_end(fig, tmp_path, capsys):
    slow = program(tmp_path / "slow", "#!/bin/sh\nexec sleep 1000\n")
    with bench.limit(4):
        bench.measured_by(fig, [slow], {"a": ("s", "<=1"), "b": ("s", "<=1")})
    assert [row["value"] for row in fig.rows] == [None, None]
    bench.summary(fig, "x.json")
    said = capsys.readouterr().out
    assert said.count("not measured: ") == 2 and "0 of 2 figures hold" in said
    assert "not measured: a: not measured within its 4 s" in said


def test_a_part_that_goes_on_is_interrupted_again(fig):
    def two():
        for name in "ab":
            try:
                time.sleep(50)
            except OSError as e:
                fig.add(name, None, "s", "<=1", str(e))

    began = time.monotonic()
    bench.measure_within(fig, "ab", 4, two)
    assert [row["note"] for row in fig.rows] == ["not measured within its 4 s"] * 2 and time.monotonic() - began < 20


@pytest.mark.parametrize("isa", [None, "avx2"])
def test_a_row_names_the_processor(fig, monkeypatch, isa):
    """And the instruction set as the program itself does."""
    if isa:
        monkeypatch.setenv("SKERRY_CPU_ISA", isa)
    fig.add("some", 1.0, "s", "<=2")
    doctor = subprocess.run([os.path.join(BIN, "skerry"), "doctor"], stdout=subprocess.PIPE, text=True, timeout=120, check=False)
    said = re.search(r"^\w+ +instructions +(.+)$", doctor.stdout, re.M).group(1)
    assert fig.rows[0]["instructions"] in said, said
    assert fig.rows[0]["cpu"] == cpuinfo("model name")


def test_rows_of_experiments_and_of_cards_name_it(tmp_path, monkeypatch):
    here = lab.Lab("some", types.SimpleNamespace(build=str(tmp_path)))
    here.figure("some", 1.0, "x", "<=2", True)
    monkeypatch.setattr(sys, "argv", ["figures.py", "--records", str(tmp_path), "--out", str(tmp_path / "figures" / "gpu.json")])
    (tmp_path / "ops-1.log").write_text(f"# processor {json.dumps(processor())}\n")
    cards.main()
    for name in ("quality", "gpu"):
        rows = json.loads((tmp_path / "figures" / f"{name}.json").read_text())
        assert rows and all(row["cpu"] == cpuinfo("model name") and row["instructions"] for row in rows)


@pytest.mark.parametrize("ends, names", [("touch $d/samples.png; sleep 1", {"first_grid_minutes", "demo_minutes"}), ("exit 1", set())])
def test_the_demo_is_timed(fig, monkeypatch, tmp_path, ends, names):
    program(tmp_path / "skerry", f'#!/bin/sh\nfor d; do :; done\nmkdir -p "$d"\n{ends}\n')
    monkeypatch.setenv("SKERRY_BIN", str(tmp_path))
    lab = types.SimpleNamespace(swarm=types.SimpleNamespace(folder=str(tmp_path)))
    if names:
        first.demo(fig, lab, None)
    else:
        with pytest.raises(RuntimeError, match="status 1"):
            first.demo(fig, lab, None)
    assert {row["name"] for row in fig.rows if 0 < row["value"] <= 2} == names


def test_a_figure_of_a_card(capsys):
    assert card.run(["sleep", "1000"], 0.1) is None and card.run(["/nowhere/at-all"], 5) is None
    assert card.run(["echo", "a figure"], 5) == "a figure\n"
    said = capsys.readouterr().err
    assert "timed out" in said and "/nowhere/at-all" in said
    assert not children_of(os.getpid())


def test_a_figure_that_fails_is_noted_and_the_others_are_measured(monkeypatch, tmp_path):
    def ends_badly(figures, _common, _folder):
        figures.add("first", 1, "s", "<=2")
        subprocess.run(["false"], check=True)

    def is_late(_figures, _common, _folder):
        subprocess.run(["sleep", "60"], check=True)

    monkeypatch.setattr(beyond, "PARTS", {"first": (60, ends_badly, "second"), "late": (1, is_late), "last": (
        60, lambda figures, _common, _folder: figures.add("last", 1, "s", "<=2"),)})
    monkeypatch.setattr(sys, "argv", ["beyond.py", "--build", str(tmp_path)])
    for name in ("SKERRY_BIN", "SKERRY_BUILD"):
        monkeypatch.setenv(name, os.environ.get(name, ""))  # set back at the end
    assert beyond.main() == 1
    rows = {r["name"]: r for r in json.loads((tmp_path / "figures" / "beyond.json").read_text())}
    assert {name: r["value"] for name, r in rows.items()} == {"first": 1, "second": None, "late": None, "last": 1}
    assert [name for name, r in rows.items() if not r["holds"]] == ["second", "late"]
    assert "returned non-zero exit status 1" in rows["second"]["note"] and rows["late"]["note"] == "not measured within its 1 s"


@pytest.mark.parametrize("only, names", [(["--only", "bits"], ["pipeline_lost_s", "pipeline_bits"]), ([], ["pipeline_bits"])])
def test_a_part_leaves_the_other_figures(monkeypatch, tmp_path, only, names):
    out = tmp_path / "pipeline.json"
    out.write_text(json.dumps([{"name": "pipeline_bits", "holds": False}, {"name": "pipeline_lost_s", "holds": False}]))
    for part in ("measured_by", "lost", "one_stage"):
        monkeypatch.setattr(pipeline, part, lambda *_: None)
    monkeypatch.setattr(pipeline, "exact", lambda figures, _build: figures.add("pipeline_bits", 0, "programs", "<=0"))
    monkeypatch.setattr(sys, "argv", ["pipeline.py", "--build", str(tmp_path), "--out", str(out), *only])
    monkeypatch.setenv("SKERRY_BIN", os.environ.get("SKERRY_BIN", ""))  # set back at the end
    assert pipeline.main() == 0  # by what was measured now
    rows = json.loads(out.read_text())
    assert [r["name"] for r in rows] == names and rows[-1]["holds"]
