"""Hold the wire schema to its evolution rules: only additions.

proto/baseline.txt lists every message field and enum value that was ever
released; `check_proto.py --update` appends what is new.  A field that
disappeared must be `reserved`; one that changed type or number fails."""
import glob
import re
import sys

BASELINE = "proto/baseline.txt"


def entries():
    out, reserved, block = {}, set(), None
    for path in sorted(glob.glob("proto/*.proto")):
        for line in open(path, encoding="utf-8"):
            line = line.split("//")[0].strip()
            m = re.match(r"(message|enum)\s+(\w+)", line)
            if m:
                block = m.group(2)
            m = re.match(r"(repeated\s+)?(\w+)\s+(\w+)\s*=\s*(\d+)\s*;", line)
            if m and block:
                out[f"{block}.{m.group(3)}"] = f"{m.group(4)} {m.group(1) or ''}{m.group(2)}"
                continue
            m = re.match(r"(\w+)\s*=\s*(\d+)\s*;", line)
            if m and block:
                out[f"{block}.{m.group(1)}"] = m.group(2)
            for name in re.findall(r'reserved.*?"(\w+)"', line):
                reserved.add(f"{block}.{name}")
    return out, reserved


now, reserved = entries()
old = {}
try:
    for row in open(BASELINE, encoding="utf-8"):
        name, _, what = row.strip().partition(" ")
        old[name] = what
except FileNotFoundError:
    pass
if "--update" in sys.argv:
    with open(BASELINE, "w", encoding="utf-8") as f:
        for name in sorted(set(now) | set(old)):
            f.write(f"{name} {now.get(name, old.get(name))}\n")
    sys.exit(0)
bad = 0
for name, what in sorted(old.items()):
    if name in now and now[name] != what:
        print(f"proto: {name} was '{what}' and is now '{now[name]}': add a new field instead")
        bad = 1
    elif name not in now and name not in reserved:
        print(f"proto: {name} disappeared: reserve its name and number")
        bad = 1
for name in sorted(set(now) - set(old)):
    print(f"proto: {name} is not in {BASELINE}: run `make proto-baseline`")
    bad = 1
sys.exit(bad)
