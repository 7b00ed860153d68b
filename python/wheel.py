"""Makes the wheel of the Python package: wheel.py FOLDER VERSION OUT, where FOLDER holds skerry/ with its library.

Needs only the standard library; the same files give the same bytes."""
import base64
import hashlib
import os
import platform
import sys
import zipfile

METADATA = """Metadata-Version: 2.1
Name: skerry
Version: {version}
Summary: Makes a training loop an island of a Skerry swarm
License: Apache-2.0
Requires-Python: >=3.9
Requires-Dist: numpy
Provides-Extra: torch
Requires-Dist: torch; extra == "torch"
"""
WHEEL = "Wheel-Version: 1.0\nGenerator: skerry\nRoot-Is-Purelib: false\nTag: {tag}\n"


def main(folder, version, out):
    tag = f"py3-none-linux_{platform.machine()}"
    info = f"skerry-{version}.dist-info"
    files = {}
    for name in sorted(os.listdir(os.path.join(folder, "skerry"))):
        if name.endswith((".py", ".so", ".typed")):
            with open(os.path.join(folder, "skerry", name), "rb") as f:
                files[f"skerry/{name}"] = f.read()
    files[f"{info}/METADATA"] = METADATA.format(version=version).encode()
    files[f"{info}/WHEEL"] = WHEEL.format(tag=tag).encode()
    record = "".join(
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}\n"
        for name, data in files.items())
    files[f"{info}/RECORD"] = (record + f"{info}/RECORD,,\n").encode()
    path = os.path.join(out, f"skerry-{version}-{tag}.whl")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, data in files.items():
            wheel.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), data, zipfile.ZIP_DEFLATED)
    print(path)


if __name__ == "__main__":
    main(*sys.argv[1:])
