"""Fail when a CUDA kernel spills registers, keeps a stack, or moves memory in small pieces.

    check_ptxas.py FOLDER      with FOLDER/x.cu.o and FOLDER/x.cu.log, the report of ptxas -v, for one or more architectures

Spills and stacks: any kernel that reads whole vectors (its template says WIDE) must have
none; the narrow ones, which serve odd sizes, may.  Small pieces: the SASS of each kernel of
HOT must hold 128-bit loads and stores of global memory."""
import glob
import os
import re
import shutil
import subprocess
import sys

# kernel: (part of its mangled name that says it is the wide one, has 128-bit stores too)
HOT = {
    "map_kernelILb1E9adamw_map": True,
    "map_kernelILb1E10linear_map": True,
    "map_kernelILb1E8gelu_mapIt": True,
    "map_kernelILb1E8cast_mapItf": True,
    "adaln_fwd_kernelILi4ELb1E": True,
    "adaln_bwd_kernelILi4ELb1E": True,
    "rmsnorm_fwd_kernelILi4ELb1E": True,
    "rmsnorm_bwd_kernelILi4ELb1E": True,
    "headnorm_fwd_kernelILi4ELb1E": False,
    "headnorm_bwd_kernelILi4ELb1E": True,
    "encode_kernelILi3ELb1E": True,
    "slab_sumsILb1E": False,
    "square_sums7squares": False,
    "entropy_kernelILb1E": True,
    "layernorm_fwd_kernelILi4ELb1E": True,
    "conv_kernelILb1E": False,
    "group_sumsILb1E": False,
    "group_normILb1E": True,
    "attention_fwd_kernelILi64ELb1E": True,
    "attention_dq_kernelILi64ELb1E": True,
    "attention_dkv_kernelILi64ELi64ELb1E": True,
    "attention_fwd_kernelILi80ELb1E": True,
}
bad = 0


def complain(text):
    global bad
    bad = 1
    print(text)


def kernels(log):
    """(architecture, name, stack bytes, spilled bytes, registers) of each kernel of one report."""
    text = open(log, encoding="utf-8").read()
    for part in re.split(r"Compiling entry function ", text)[1:]:
        name, arch = re.match(r"'(\w+)' for '(sm_\w+)'", part).groups()
        stack = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+)", part)
        used = re.search(r"Used (\d+) registers", part)
        yield arch, name, int(stack[1]), int(stack[2]) + int(stack[3]), int(used[1])


def narrow(name):
    return "Lb1E" not in name and "Lb0E" in name


def check_reports(folder):
    """The architectures for which kernels were compiled."""
    count, most, archs = 0, (0, ""), set()
    for log in sorted(glob.glob(f"{folder}/*.cu.log")):
        for arch, name, stack, spilled, registers in kernels(log):
            count += 1
            archs.add(arch)
            most = max(most, (registers, name))
            if (stack or spilled) and not narrow(name):
                complain(f"{log}: {arch}: {name}: {stack} bytes of stack, {spilled} of them spilled")
    if not count:
        complain(f"{folder}: no report of ptxas; run `make check-cuda`")
    print(f"check-cuda: {count} kernels, no spills where it matters; most registers: {most[0]} in {most[1]}")
    return archs


def disassembler():
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    here = glob.glob(os.path.expanduser(
        "~/.cache/skerry/references/lib/python3*/site-packages/triton/backends/nvidia/bin"))
    for folder in [f"{home}/bin"] + here:
        if os.access(f"{folder}/cuobjdump", os.X_OK):
            os.environ["PATH"] = folder + ":" + os.environ["PATH"]
    return shutil.which("cuobjdump")


def functions(made, tool):
    """(architecture, name, SASS) of each function of an object."""
    text = subprocess.run([tool, "-sass", made], check=True, capture_output=True, text=True).stdout
    for code in re.split(r"^arch = ", text, flags=re.M)[1:]:
        for part in code.split("Function : ")[1:]:
            name, _, body = part.partition("\n")
            yield code.split()[0], name.strip(), body


def check_sass(folder, archs):
    tool = disassembler()
    if not tool:
        print("check-cuda: no cuobjdump in CUDA_HOME/bin or PATH: 128-bit accesses not checked")
        return
    left = {(arch, hot) for arch in archs - {"sm_90a"} for hot in HOT}  # that has what no other card runs
    for made in sorted(glob.glob(f"{folder}/*.cu.o")):
        for arch, name, body in functions(made, tool):
            for hot in [h for h in HOT if h in name]:
                left.discard((arch, hot))
                if not re.search(r"LDG\.E[.\w]*\.128", body):
                    complain(f"{made}: {arch}: {name}: no 128-bit load")
                if HOT[hot] and not re.search(r"STG\.E[.\w]*\.128", body):
                    complain(f"{made}: {arch}: {name}: no 128-bit store")
            tensor = "HGMMA.64x72x16.F32.BF16" if "hopper" in name else "HMMA.16816.F32.BF16"
            if "attention_" in name and "f32" not in name and tensor not in body:
                complain(f"{made}: {arch}: {name}: no tensor cores")
    for arch, hot in sorted(left):
        complain(f"{folder}: {arch}: no kernel {hot}")
    print(f"check-cuda: 128-bit accesses in {len(HOT)} hot kernels")


check_sass(sys.argv[1], check_reports(sys.argv[1]))
sys.exit(bad)
