# Documentation that is generated from the code, so that it cannot drift.
.PHONY: docs docs-check
docs: $(BIN)/skerry ## regenerate docs/job.md from the table of keys
	@{ cat docs/job.head.md; $(BIN)/skerry keys --markdown; } >docs/job.md

docs-check: $(BIN)/skerry
	@{ cat docs/job.head.md; $(BIN)/skerry keys --markdown; } | cmp -s - docs/job.md || \
	  { echo 'docs/job.md differs from the table of keys: run `make docs`'; exit 1; }
