"""Sets the order of files: `make check-int` hands whole files to a few processes, and at the end all would wait for a long file
that comes last."""
LONGEST_FIRST = ["failover", "store", "gpu_run", "latents", "faults", "snapshots", "first_hour", "spot", "elastic", "island",
                 "page", "folds_at_workers", "slow_disk", "cascade", "slurm", "bad_paths", "ingest"]


def pytest_collection_modifyitems(items):
    rank = {f"test_{name}.py": i for i, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: rank.get(item.path.name, len(rank)))
