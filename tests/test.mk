# make test: everything that README promises, on a machine with nothing installed.
# Each step is a target of its own, so that a person can run just one.
FUZZ_QUICK ?= 5
T ?=

.PHONY: test check-int check-ref check-sanitizers check-clang
test: ## the whole suite: set-up, lint, unit (release, asan, tsan, clang), reference, fuzz, integration
	deploy/install-deps.sh test
	@set -e; for step in "all lint WERROR=1" "check-unit WERROR=1" check-clang check-sanitizers \
	   check-ref "fuzz FUZZ_SECONDS=$(FUZZ_QUICK)" check-int; do \
	  echo "==== make $$step"; start=$$(date +%s); \
	  $(MAKE) --no-print-directory -j2 $$step; \
	  echo "==== $$step: $$(( $$(date +%s) - start )) s"; done
	@echo 'all tests passed'

# Without CUDA: its kernels take minutes to compile, and no sanitizer sees them.
check-sanitizers: ## unit tests under asan+ubsan and tsan
	@$(MAKE) --no-print-directory check-unit BUILD=asan CUDA=0 WERROR=1
	@$(MAKE) --no-print-directory check-unit BUILD=tsan CUDA=0 WERROR=1

check-clang: ## everything compiles with clang without a warning
	@$(MAKE) --no-print-directory all CC=clang CUDA=0 WERROR=1 BUILD=debug BUILD_DIR=$(BUILD_DIR)/clang

# Small programs that tests in Python call.
TOOLS := $(patsubst tests/tools/%.c,$(O)/tests/tools/%,$(sort $(shell find tests/tools -name '*.c')))

check-ref: all $(TOOLS) ## the model, its training, samples and export against PyTorch
	SKERRY_BUILD=$(BUILD_DIR) $(PYTHON) -m pytest -q -p no:cacheprovider tests/reference

check-int: all $(TOOLS) ## real daemons on loopback, the HTTP API, the page in Chromium (T=test_x.py: one)
	SKERRY_BIN=$(BIN) SKERRY_BUILD=$(BUILD_DIR) $(PYTHON) -m pytest -q -p no:cacheprovider $(if $(T),tests/integration/$(T),tests/integration)
