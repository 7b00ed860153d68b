"""Makes data that `skerry submit` reads from Parquet or Arrow files, as Hugging Face's hub and its library `datasets` have them:
`python3 -m skerry.parquet train-*.parquet --out DIR`.

Rows with an image become WebDataset tars in DIR, with their classes and captions; other rows become JSON lines with the field
`text`.  Which columns those are is known from the features that `datasets` writes into a file, from types and from usual names;
options name others.  Images stay as they are: JPEG, PNG and WebP.  Reads a few rows at a time.  Needs pyarrow."""
from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import sys
import tarfile
import time
from typing import Any, Dict, Iterator, List, Optional, Tuple

TAR_BYTES = 1 << 30
ROWS = 64  # read at once: images may be large
USUAL = {"image": ("image", "img", "jpg", "png", "webp"), "text": ("text", "content"), "label": ("label", "labels", "cls", "class"),
         "caption": ("caption", "captions", "text", "prompt")}


class Refused(Exception):
    """What is wrong with the files or the options, in one sentence."""


class _Rows:
    """The rows of all files, which have the same columns."""

    def __init__(self, files: List[str]) -> None:
        self.files = files
        self.schema = self._open(files[0])[0]
        for path in files[1:]:
            names = self._open(path)[0].names
            if names != self.schema.names:
                raise Refused(f"{path} has the columns {', '.join(names)}, but {files[0]} has {', '.join(self.schema.names)}: "
                              "files of one dataset have the same")

    @staticmethod
    def _open(path: str) -> Tuple[Any, Any]:
        """The schema of a file, and a function that makes an iterator of batches with some of its columns."""
        import pyarrow
        try:
            if path.endswith(".arrow"):
                source = pyarrow.memory_map(path)
                try:
                    read: Any = pyarrow.ipc.open_stream(source)
                    return read.schema, lambda names: (b.select(names) for b in read)
                except pyarrow.ArrowInvalid:
                    file = pyarrow.ipc.open_file(source)
                    return file.schema, lambda names: (file.get_batch(i).select(names) for i in range(file.num_record_batches))
            import pyarrow.parquet
            table = pyarrow.parquet.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20)
            return table.schema_arrow, lambda names: table.iter_batches(ROWS, columns=names)
        except FileNotFoundError as e:
            raise Refused(f"there is no file {path}") from e
        except (pyarrow.ArrowException, OSError) as e:
            raise Refused(f"{path} cannot be read as {'Arrow' if path.endswith('.arrow') else 'Parquet'}: {e}") from e

    def read(self, names: List[str]) -> Iterator[Tuple[str, int, Dict[str, Any]]]:
        """(file, number of the row in it, its values by name), in order."""
        import pyarrow
        for path in self.files:
            at = 0
            try:
                for batch in self._open(path)[1](names):
                    for start in range(0, batch.num_rows, ROWS):
                        for row in batch.slice(start, ROWS).to_pylist():
                            yield path, at, row
                            at += 1
            except (pyarrow.ArrowException, OSError) as e:
                raise Refused(f"{path}: cannot be read behind row {at}: {e}") from e


class _Columns:
    """Which columns are what: by the options, else by what `datasets` noted, by types and names."""

    def __init__(self, schema: Any, asked: argparse.Namespace) -> None:
        import pyarrow.types as types
        noted = json.loads((schema.metadata or {}).get(b"huggingface", b"{}")).get("info", {}).get("features", {})
        kinds = {f.name: f.type for f in schema}
        self.names, self.noted = list(kinds), noted
        self._asked = asked

        def is_image(name: str) -> bool:
            t = kinds[name]
            return (_feature(noted, name) == "Image" or types.is_binary(t) or types.is_large_binary(t)
                    or (types.is_struct(t) and t.get_field_index("bytes") >= 0))

        def is_text(name: str) -> bool:
            t = kinds[name]
            if types.is_list(t) or types.is_large_list(t):
                t = t.value_type
            return types.is_string(t) or types.is_large_string(t)

        def is_class(name: str) -> bool:
            return _feature(noted, name) == "ClassLabel" or types.is_integer(kinds[name]) or types.is_string(kinds[name])

        images = [] if asked.text else [n for n in self.names if is_image(n)]
        self.image = self._one("image", images, len(images) == 1)
        self.text = self.label = self.caption = None
        if not self.image:
            texts = [n for n in self.names if is_text(n)]
            self.text = self._one("text", texts, len(texts) == 1)
            if not self.text:
                raise Refused(f"which column is the text? {self._there()}: name it with --text, or images with --image")
            return
        classes = [n for n in self.names if _feature(noted, n) == "ClassLabel"]
        self.label = self._one("label", [n for n in self.names if is_class(n)], False) or (classes[0] if len(classes) == 1 else None)
        self.caption = self._one("caption", [n for n in self.names if is_text(n) and n != self.label], False)
        if not self.label and not self.caption:
            raise Refused(f"which column is the class or the caption of an image? {self._there()}: name it with --label or --caption")

    def _there(self) -> str:
        return f"the columns are {', '.join(self.names)}"

    def _one(self, what: str, fit: List[str], only: bool) -> Optional[str]:
        asked = getattr(self._asked, what)
        if asked is not None:
            if asked not in self.names:
                raise Refused(f"--{what} {asked}: there is no such column; {self._there()}")
            return str(asked)
        usual = [n for n in USUAL[what] if n in fit]
        return usual[0] if usual else fit[0] if only else None

    def class_names(self) -> List[str]:
        told = self.noted.get(self.label, {}) if self.label else {}
        return [" ".join(str(n).split()) for n in told.get("names", [])] if _feature(self.noted, self.label) == "ClassLabel" else []


def _feature(noted: Dict[str, Any], name: Optional[str]) -> Optional[str]:
    told = noted.get(name) if name else None
    return told.get("_type") if isinstance(told, dict) else None


def _ending(image: bytes) -> Optional[str]:
    if image[:3] == b"\xff\xd8\xff":
        return "jpg"
    if image[:8] == b"\x89PNG\r\n\x1a\n":
        return "png"
    return "webp" if image[:4] == b"RIFF" and image[8:12] == b"WEBP" else None


class _Tars:
    def __init__(self, folder: str) -> None:
        self.folder, self.n, self.bytes = folder, 0, 0
        self.tar: Optional[tarfile.TarFile] = None

    def add(self, key: str, members: List[Tuple[str, bytes]]) -> None:
        if self.tar is None or self.bytes >= TAR_BYTES:
            self.end()
            self.tar, self.bytes = tarfile.open(os.path.join(self.folder, f"part-{self.n:03d}.tar"), "w"), 0
            self.n += 1
        for ending, data in members:
            info = tarfile.TarInfo(f"{key}.{ending}")
            info.size = len(data)
            self.tar.addfile(info, io.BytesIO(data))
            self.bytes += len(data) + 1024

    def end(self) -> None:
        if self.tar is not None:
            self.tar.close()
        self.tar = None


class _Progress:
    def __init__(self) -> None:
        self.rows, self.told, self.tty = 0, time.monotonic(), sys.stderr.isatty()

    def row(self, path: str) -> None:
        self.rows += 1
        if time.monotonic() - self.told > (0.5 if self.tty else 30):
            self.told = time.monotonic()
            end = "\r" if self.tty else "\n"
            print(f"row {self.rows}, in {os.path.basename(path)}", end=end, file=sys.stderr, flush=True)


def _lines(value: Any) -> str:
    """The captions of an image, one a line."""
    each = value if isinstance(value, list) else [value]
    return "".join(" ".join(str(c).split()) + "\n" for c in each if c is not None and str(c).strip())


def _image_of(value: Any, where: str) -> Optional[bytes]:
    if isinstance(value, dict):
        if value.get("bytes") is None and value.get("path"):
            raise Refused(f"{where} names the file {value['path']} in place of the image's bytes: make the dataset with its images in it")
        value = value.get("bytes")
    return bytes(value) if value else None


def _write_images(rows: _Rows, columns: _Columns, folder: str) -> str:
    names, left, n, tars, progress = columns.class_names(), 0, 0, _Tars(folder), _Progress()
    for path, at, row in rows.read([c for c in (columns.image, columns.label, columns.caption) if c]):
        progress.row(path)
        where = f"{path}: row {at}"
        image = _image_of(row[str(columns.image)], where)
        ending = _ending(image) if image else None
        if image is None or ending is None:
            left += 1
            continue
        members = [(ending, image)]
        if columns.label:
            if row[columns.label] is None or row[columns.label] == -1:  # datasets' number of a class that is not known
                raise Refused(f"{where} has no class in the column {columns.label}")
            members.append(("cls", str(row[columns.label]).encode()))
        if columns.caption:
            members.append(("txt", _lines(row[columns.caption]).encode()))
        tars.add(f"{n:09d}", members)
        n += 1
    tars.end()
    if n == 0:
        raise Refused(f"the column {columns.image} has no JPEG, PNG or WebP image")
    if names:
        with open(os.path.join(folder, "classes.txt"), "w", encoding="utf-8") as f:
            f.write("".join(name + "\n" for name in names))
    what = " with captions" if columns.caption else ""
    return (f"{n} images{what} in the column {columns.image}"
            + (f", classes in {columns.label}" if columns.label else "") + (f", captions in {columns.caption}" if columns.caption else "")
            + (f"; {left} rows without a JPEG, PNG or WebP image are left out" if left else ""))


def _write_texts(rows: _Rows, column: str, folder: str) -> str:
    import pyarrow
    n, left, progress = 0, 0, _Progress()
    out: Optional[Any] = None
    now = None
    for path, _, row in rows.read([column]):
        progress.row(path)
        if path != now or out is None:  # a part for each file
            if out:
                out.close()
            part = os.path.join(folder, f"part-{rows.files.index(path):03d}.jsonl.zst")
            out, now = pyarrow.CompressedOutputStream(part, "zstd"), path
        if not row[column]:
            left += 1
            continue
        if not isinstance(row[column], str):
            raise Refused(f"the column {column} of {path} has {type(row[column]).__name__}s, no texts")
        out.write((json.dumps({"text": row[column]}, ensure_ascii=False) + "\n").encode())
        n += 1
    if out:
        out.close()
    if n == 0:
        raise Refused(f"the column {column} has no text")
    return f"{n} texts in the column {column}" + (f"; {left} empty ones are left out" if left else "")


def convert(files: List[str], folder: str, asked: argparse.Namespace) -> str:
    try:
        import pyarrow  # noqa: F401
    except ImportError as e:
        raise Refused(f"pyarrow, which reads these files, is not installed for {sys.executable}: pip install pyarrow") from e
    if os.path.exists(folder) and not (os.path.isdir(folder) and not os.listdir(folder)):
        raise Refused(f"--out {folder} is there already: name a new folder")
    rows = _Rows(files)
    columns = _Columns(rows.schema, asked)
    made = os.path.normpath(folder) + ".unfinished"
    shutil.rmtree(made, ignore_errors=True)
    os.makedirs(made)
    try:
        said = _write_images(rows, columns, made) if columns.image else _write_texts(rows, str(columns.text), made)
        os.replace(made, folder)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return said


def main() -> None:
    parser = argparse.ArgumentParser(prog="python3 -m skerry.parquet", description="Makes data for `skerry submit` from Parquet or Arrow files.")
    parser.add_argument("files", nargs="+", metavar="FILE", help="a .parquet or .arrow file of the dataset")
    parser.add_argument("--out", required=True, metavar="DIR", help="a new folder for what is made")
    for what in ("text", "image", "label", "caption"):
        parser.add_argument(f"--{what}", metavar="COLUMN", help=f"the column with the {what}; without it, what the file says or its usual name")
    asked = parser.parse_args()
    try:
        print(f"{asked.out}: {convert(asked.files, asked.out, asked)}")
    except Refused as e:
        sys.exit(f"parquet: {e}")
    except OSError as e:
        sys.exit(f"parquet: {e.filename or asked.out}: {e.strerror}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
