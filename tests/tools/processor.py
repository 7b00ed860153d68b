"""What this machine's processor is, and what our kernels use of it: each row of figures says so."""
import json
import os
import re

# Flags of /proc/cpuinfo, and the sets as `skerry doctor` names them; each has those before it.
SETS = {"avx2": "AVX2", "avx512f": "AVX-512", "avx512_bf16": "AVX-512 with bf16", "amx_bf16": "AVX-512 with AMX"}
NARROWED = {"generic": 0, "avx2": 1, "avx512": 2, "avx512bf16": 3}  # how many of them SKERRY_CPU_ISA leaves


def cpuinfo(key):
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        found = re.search(rf"^{key}\s*:\s*(.*)$", f.read(), re.M)
    return found.group(1).strip() if found else ""


def cpu_has(flag):
    """True if our kernels may use the set: the CPU has it, and SKERRY_CPU_ISA does not leave it out."""
    allowed = list(SETS)[:NARROWED.get(os.environ.get("SKERRY_CPU_ISA"), len(SETS))]
    return flag in allowed and flag in cpuinfo("flags").split()


def instructions():
    """The instruction set that our kernels use."""
    return next((SETS[flag] for flag in reversed(SETS) if cpu_has(flag)), "no vector extension in use")


def processor():
    """What a row of figures says of the machine that measured it."""
    return {"cpu": cpuinfo("model name"), "instructions": instructions()}


if __name__ == "__main__":
    print(json.dumps(processor()))
