# Everything that is checked without running the code.
##@ Check without running
.PHONY: lint layers calls names size links tested lint-test headers format format-fix proto-check proto-baseline
lint: layers calls names size links tested lint-test proto-check headers format docs-check ## layers, calls, names, sizes, links, tests, headers alone, schema rules, formatting

layers:
	@$(PYTHON) tests/tools/check_layers.py
calls: all ## no calls up, no circles of calls between files
	@$(PYTHON) tests/tools/check_calls.py $(O)
names: ## no name without a manual, no manual without a name, no function without a caller
	@$(PYTHON) tests/tools/check_names.py
size:
	@$(PYTHON) tests/tools/check_size.py
links: ## no link between documents leads nowhere
	@$(PYTHON) tests/tools/check_links.py
tested: ## no file that nothing tests
	@$(PYTHON) tests/tools/check_tests.py
lint-test:
	@CC='$(CC)' $(PYTHON) tests/tools/test_lint.py -q
proto-check:
	@$(PYTHON) tests/tools/check_proto.py
proto-baseline: ## record additions to the wire schema in proto/baseline.txt
	@$(PYTHON) tests/tools/check_proto.py --update

# Each header compiles alone.
HEADERS = $(sort $(shell find common kernels libskerry coordinator worker cli -name '*.h' ! -path 'kernels/cuda/*'))
headers: $(PB_H)
	@for h in $(HEADERS); do \
	  $(CC) $(ALL_CPPFLAGS) -std=c11 -Wall -Wextra -Wno-unused-function -Wno-unused-parameter \
	    -fsyntax-only -x c $$h || exit 1; done

C_FILES = $(shell git ls-files '*.c' '*.h' '*.cu' '*.cuh' '*.inc' 2>/dev/null)
format:
	@mkdir -p $(O); clang-format --dry-run -Werror $(C_FILES) >$(O)/format.log 2>&1 || \
	  { head -20 $(O)/format.log; echo 'run `make format-fix`'; exit 1; }
format-fix: ## clang-format every C file in place
	@clang-format -i $(C_FILES)

# Documentation that is generated from the code, so that it cannot drift.
.PHONY: docs docs-check
docs: $(BIN)/skerry ## regenerate docs/job.md from the table of keys
	@{ cat docs/job.head.md; $(BIN)/skerry keys --markdown; } >docs/job.md

docs-check: $(BIN)/skerry
	@{ cat docs/job.head.md; $(BIN)/skerry keys --markdown; } | cmp -s - docs/job.md || \
	  { echo 'docs/job.md differs from the table of keys: run `make docs`'; exit 1; }
