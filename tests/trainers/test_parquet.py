"""python -m skerry.parquet: what Hugging Face's `datasets` writes becomes data that `skerry check` reads."""
import io
import json
import os
import pathlib
import subprocess
import sys
import tarfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

PACKAGE = pathlib.Path(os.environ.get("SKERRY_BUILD", "build")).resolve() / "python"
SKERRY = pathlib.Path(os.environ.get("SKERRY_BIN", "build/bin")).resolve() / "skerry"
CLASSES = ["red cat", "dog", "bird"]
DIT = "model: {type: dit, dim: 64, depth: 1, heads: 2}\ndata: {image_size: 32, path: %s}"
LLAMA = "model: {type: llama, dim: 64, depth: 1, heads: 2, context: 64}\ndata: {path: %s}"


def check(folder, model, data):
    """`skerry check` of a job with that model and data."""
    job = folder / "job.yaml"
    job.write_text(f"name: job\n{model % data}\ntrain: {{batch: 4}}\nouter: {{steps: 5, rounds: 2}}\n")
    p = subprocess.run([SKERRY, "check", job], capture_output=True, text=True, check=False)
    return p.returncode, p.stdout + p.stderr


def convert(*args):
    p = subprocess.run([sys.executable, "-m", "skerry.parquet", *map(str, args)], capture_output=True, text=True, check=False,
                       env={**os.environ, "PYTHONPATH": str(PACKAGE)})
    return p.returncode, (p.stdout + p.stderr).strip()


def picture(i, kind="PNG"):
    out = io.BytesIO()
    Image.new("RGB", (40 + i % 5, 32), (i * 7 % 256, i * 13 % 256, i * 29 % 256)).save(out, kind)
    return out.getvalue()


def table(features, **columns):
    """A table as `datasets` writes it: the features stand in the schema's metadata, an image is {bytes, path}."""
    t = pa.table(columns)
    return t.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})}) if features else t


def images(first, n, **more):
    kinds = ["PNG", "JPEG", "WEBP", "GIF"]
    return [{"bytes": picture(i, kinds[i % len(kinds)]), "path": None} for i in range(first, first + n)]


CLASSED = {"img": {"_type": "Image"}, "animal": {"names": CLASSES, "_type": "ClassLabel"}, "note": {"dtype": "string", "_type": "Value"}}


def test_images_with_classes(tmp_path):
    for part in range(2):
        pq.write_table(table(CLASSED, img=images(40 * part, 40), animal=[i % 3 for i in range(40)], note=["x"] * 40),
                       tmp_path / f"{part}.parquet")
    rc, said = convert(tmp_path / "0.parquet", tmp_path / "1.parquet", "--out", tmp_path / "out")
    assert rc == 0 and "60 images" in said and "classes in animal" in said and "20 rows without" in said, said
    with tarfile.open(tmp_path / "out" / "part-000.tar") as tar:
        members = {m.name: tar.extractfile(m).read() for m in tar}
    assert len(members) == 120 and members["000000001.jpg"] == picture(1, "JPEG") and members["000000001.cls"] == b"1"
    rc, said = check(tmp_path, DIT, tmp_path / "out")
    assert rc == 0 and "60 images in 3 classes" in said, said
    assert (tmp_path / "out" / "classes.txt").read_text().split("\n") == [*CLASSES, ""]


def test_captions(tmp_path):
    """Of a column of lists each text is a caption; a file of Arrow, as save_to_disk writes it, is a stream."""
    t = table({}, image=[picture(i) for i in range(6)], text=[[f"picture {i}\nof a thing", "", "another"] for i in range(6)])
    with pa.ipc.new_stream(str(tmp_path / "data.arrow"), t.schema) as out:
        out.write_table(t)
    rc, said = convert(tmp_path / "data.arrow", "--out", tmp_path / "out")
    assert rc == 0 and "6 images with captions" in said, said
    with tarfile.open(tmp_path / "out" / "part-000.tar") as tar:
        assert tar.extractfile("000000002.txt").read() == b"picture 2 of a thing\nanother\n"


def test_texts(tmp_path):
    pq.write_table(table({}, title=["a"] * 50, text=[f"document {i} \u00e9 " * 40 if i else "" for i in range(50)]), tmp_path / "t.parquet")
    rc, said = convert(tmp_path / "t.parquet", "--out", tmp_path / "out")
    assert rc == 0 and "49 texts" in said and "1 empty" in said, said
    rc, said = check(tmp_path, LLAMA, tmp_path / "out")
    assert rc == 0 and "49 documents" in said, said


def test_refusals(tmp_path):
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 and no more")
    pq.write_table(table({}, a=["x"], b=["y"]), tmp_path / "two.parquet")
    pq.write_table(table({}, image=[picture(0)], size=[0.5]), tmp_path / "bare.parquet")
    pq.write_table(table(CLASSED, img=[{"bytes": None, "path": "cat.png"}], animal=[0], note=[""]), tmp_path / "paths.parquet")
    pq.write_table(table(CLASSED, img=images(0, 1), animal=[-1], note=[""]), tmp_path / "unknown.parquet")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a").touch()
    for args, what in (
            (["broken.parquet"], "cannot be read as Parquet"), (["none.parquet"], "there is no file"),
            (["two.parquet"], "the columns are a, b: name it with --text"), (["two.parquet", "--text", "c"], "no such column"),
            (["two.parquet", "bare.parquet"], "files of one dataset have the same"), (["bare.parquet"], "name it with --label or --caption"),
            (["bare.parquet", "--text", "size"], "no texts"), (["paths.parquet"], "names the file cat.png"),
            (["unknown.parquet"], "row 0 has no class in the column animal")):
        files = [tmp_path / a if a.endswith(".parquet") else a for a in args]
        rc, said = convert(*files, "--out", tmp_path / "out")
        assert rc == 1 and what in said and said.startswith("parquet: ") and "\n" not in said, (args, said)
    rc, said = convert(tmp_path / "two.parquet", "--text", "a", "--out", tmp_path / "full")
    assert rc == 1 and "is there already" in said, said


@pytest.mark.parametrize("model", [DIT, LLAMA])
def test_check_names_the_way(tmp_path, model):
    """A Parquet file, or a folder of them, is refused with the command that converts it."""
    pq.write_table(table({}, text=["a"]), tmp_path / "t.parquet")
    for path in (tmp_path / "t.parquet", tmp_path):
        rc, said = check(tmp_path, model, path)
        assert rc == 4 and "python3 -m skerry.parquet" in said, said
