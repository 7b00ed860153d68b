"""Fail on a C file without a unit test.

    check_tests.py [ROOT]

The test of worker/net/dit_rows.c is test_dit_rows.c, or that of the object whose piece the file is,
test_dit.c, in tests/unit/worker/net or a folder above it.  ELSEWHERE says what tests the others."""
import os
import sys

from sources import files, in_tests

# file or folder: what tests it.  A row that is no longer needed is complained of, too.
ELSEWHERE = {
    "kernels/cpu/": "the test of each operation, in tests/unit/kernels, runs all variants",
    "kernels/cuda/": "those tests on the emulated GPU and on a real one; cuDNN and NCCL by their own (check-cudnn, check-nccl)",
    "kernels/profile.c": "test_device.c",
    "coordinator/job/turns.c": "test_assign.c",
    "coordinator/kinds/check.c": "test_spot_check.c",
    "coordinator/kinds/encode.c": "test_encoding.c",
    "coordinator/kinds/eval.c": "test_guard.c, test_best.c",
    "coordinator/kinds/sample.c": "test_grid.c",
    "coordinator/kinds/train.c": "test_report.c, test_rounds.c",
    "coordinator/outer/outer_run.c": "test_outer_exec.c, test_outer_early.c",
    "coordinator/outer/outer_share.c": "test_outer_exec.c",
    "coordinator/outer/outer_verify.c": "test_outer_exec.c",
    "coordinator/state/job.c": "test_persist.c, and all tests of coordinator/job and work",
    "coordinator/http/http_access.c": "test_http_api.c, test_http_command.c",
    "coordinator/http/http_answer.c": "test_http_api.c, test_http_command.c",
    "common/net/blobstore.c": "a table: test_blob_dir.c, test_blob_s3.c",
    "common/net/net_fault.c": "test_rpc_server.c; test builds alone have faults",
    "worker/forget.c": "test_agent.c",
    "worker/settle.c": "test_agent.c",
    "worker/engine/encoders.c": "test_replica_encoders.c, test_encoders_keep.c",
    "worker/engine/forward.c": "test_work_eval.c",
    "worker/engine/task_experts.c": "test_mixture.c",
    "worker/kinds/kinds.c": "a table: the test of each kind",
    "worker/train/ahead.c": "test_pipeline.c, test_chains.c",
    "libskerry/skerry.c": "tests/trainers",
    "cli/base/config_numbers.c": "test_model_folder.c",
    "cli/cost.c": "test_cost.py",
    "cli/job/folders.c": "test_external.py, test_first_hour.py",
    "cli/submit.c": "test_run.py, test_bad_input.py",
    "cli/show/metrics.c": "test_run.py",
    "coordinator/main.c": "daemons, in tests/integration",
    "worker/main.c": "daemons, in tests/integration",
    "deploy/": "make demo",
}


def tested(path, tests):
    """True if the file, or an object of which it is a piece, has a test."""
    folder, name = os.path.split(path[: -len(".c")])
    while name:
        above = folder
        while True:
            if os.path.join("tests/unit", above, f"test_{name}.c") in tests:
                return True
            if not above:
                break
            above = os.path.dirname(above)
        name = name.rpartition("_")[0]
    return False


def row_of(path, rows):
    return next((r for r in rows if path == r or r.endswith("/") and path.startswith(r)), None)


def findings(root, elsewhere):
    tests = {f for f in files(root, (".c",)) if f.startswith("tests/unit/")}
    used, out = set(), []
    for path in files(root, (".c",)):
        if in_tests(path) or path.startswith("examples/") or tested(path, tests):
            continue
        row = row_of(path, elsewhere)
        used.add(row)
        if row is None:
            out.append(f"{path}: no test; expected tests/unit/{os.path.dirname(path)}/test_{os.path.basename(path)}, "
                       "or a row of ELSEWHERE in check_tests.py that says what tests it")
    return out + [f"check_tests.py: ELSEWHERE needs no row '{r}'" for r in elsewhere if r not in used]


def main():
    found = findings(sys.argv[1] if len(sys.argv) > 1 else ".", ELSEWHERE)
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
