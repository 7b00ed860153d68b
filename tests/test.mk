# make test: everything that README promises, on a machine with nothing installed.
# Each step is a target of its own, so that a person can run just one.  Tests that wait for disks and
# daemons run more at a time than there are cores; the fuzzers, which are given seconds, do not.
##@ Test
FUZZ_QUICK ?= 5
T ?=

# tests/unit mirrors the tree: a test links the layer of its folder, and what lies below it.
# Those of the worker, which take longest, come first.  THREADED=DIR leaves out the programs that made no
# thread in their last run of DIR/release: they have no race to look for.
UNIT := $(patsubst tests/unit/%.c,$(O)/tests/unit/%,$(shell find tests/unit -name "test_*.c" | sort -r))
$(UNIT:%=%.o): | $(O)/tests/.links # which says what to install, before a header is missed
ifneq ($(THREADED),)
UNIT := $(filter-out $(patsubst $(THREADED)/release/%.alone,$(O)/%,$(shell find $(THREADED)/release/tests/unit -name '*.alone')),$(UNIT))
endif

# As many at a time as make has jobs; what each prints is shown when it ends, and those that failed
# are named at the end.
RAN := $(UNIT:%=%.run)
NOTED := $(if $(filter release,$(BUILD)),$(O)/tests/unit/threads.so)
# One that hangs is to fail; the longest of the release took 155 s on two slow cores beside other work.
WITHIN := timeout --foreground -v -k 10 900
NOTING = touch $<.alone; export LD_PRELOAD=$(abspath $(NOTED)) SKERRY_ALONE=$(abspath $<).alone;
.PHONY: check-unit check-unit-begins $(RAN)
check-unit: $(RAN) ## unit tests of this BUILD
	@if [ -s $(O)/tests/failed ]; then sed 's/^/FAILED: /' $(O)/tests/failed; exit 1; fi
$(RAN): %.run: % check-unit-begins $(NOTED)
	@start=$$(date +%s); export TSAN_OPTIONS="suppressions=$(CURDIR)/tests/tsan.supp $$TSAN_OPTIONS"; \
	  ($(if $(NOTED),$(NOTING)) exec $(WITHIN) tests/unit/in_memory.sh $<) >$<.log 2>&1 || echo $< >>$(O)/tests/failed; \
	  flock $(O)/tests/printing sh -c "echo \"== $< ($$(( $$(date +%s) - start )) s)\"; cat $<.log"
check-unit-begins:
	@mkdir -p $(O)/tests && : >$(O)/tests/failed && : >$(O)/tests/printing
$(O)/tests/unit/threads.so: tests/unit/threads.c $(STAMP)
	$(call say,CC)mkdir -p $(@D) && $(CC) -std=c11 -D_GNU_SOURCE -O1 -fPIC -shared $(WARN) $(if $(WERROR),-Werror) -o $@ $< -ldl

# Many share the cores, so threads that wait leave them to others.
check-unit check-int check-ref check-latents check-trainers check-deploy sim fuzz chaos: export OMP_WAIT_POLICY = passive

.PHONY: test check-int check-ref check-sanitizers check-clang
test: ## the whole suite: set-up, lint, unit (release, asan, tsan, clang), simulation, references, deploy, fuzz, integration
	deploy/install-deps.sh test
	@set -e; cores=$$(nproc); \
	  step() { jobs=$$1; shift; echo "==== make $$*"; start=$$(date +%s); \
	    $(MAKE) --no-print-directory -j$$jobs "$$@"; echo "==== $$*: $$(( $$(date +%s) - start )) s"; }; \
	  step $$((2 * cores)) all lint WERROR=1; \
	  step $$((2 * cores)) check-unit check-asan sim bench-programs WERROR=1; \
	  step $$((2 * cores)) -Otarget check-ref check-latents check-trainers check-deploy check-tsan; \
	  step $$cores fuzz chaos FUZZ_SECONDS=$(FUZZ_QUICK) MINUTES=1; \
	  step $$cores check-int
	@echo 'all tests passed'

# Sanitizers are clang's: so the second compiler's warnings come with them, and fuzzers and daemons that fail
# on purpose are linked from the same objects.  Without CUDA: its kernels take minutes to compile, and no
# sanitizer sees them.
WITH_CLANG = $(MAKE) --no-print-directory CC=clang CUDA=0 BUILD_DIR=$(BUILD_DIR)/clang
WITH_ASAN = $(WITH_CLANG) BUILD=asan COVERED=1
.PHONY: check-asan check-tsan
check-sanitizers: check-asan check-tsan ## unit tests under asan+ubsan, and those that make threads under tsan
# Both trees read what is generated, so that is made first.
check-asan check-tsan: clang-generated
check-asan:
	+@$(WITH_ASAN) all check-unit WERROR=1
check-tsan:
	+@$(WITH_CLANG) BUILD=tsan check-unit THREADED=$(abspath $(BUILD_DIR)) WERROR=1
check-clang: clang-generated ## everything compiles with clang without a warning
	+@$(WITH_ASAN) all WERROR=1
.PHONY: clang-generated generated
clang-generated:
	+@$(WITH_ASAN) generated
generated: $(PB_H) $(GEN)/web_assets.c

# Small programs that tests in Python call.
TOOLS := $(patsubst tests/tools/%.c,$(O)/tests/tools/%,$(sort $(shell find tests/tools -name '*.c')))

check-ref: all $(TOOLS) ## the model, its training, samples and export against PyTorch
	SKERRY_BUILD=$(BUILD_DIR) $(PYTHON) -m pytest -q -p no:cacheprovider tests/reference

# Daemons wait as much as they compute, so more files run at a time than there are cores.  After a
# dozen failures it ends: each may have waited for minutes, and the reasons are told at the end.
INT_PROCESSES ?= $(shell expr 2 \* $$(nproc))
check-int: all $(TOOLS) gpu-tests ## real daemons on loopback, the HTTP API, the page in Chromium (T=test_x.py: one)
	SKERRY_BIN=$(BIN) SKERRY_BUILD=$(BUILD_DIR) $(PYTHON) -m pytest -q -p no:cacheprovider \
	  $(if $(T),tests/integration/$(T),-n $(INT_PROCESSES) --dist loadfile --maxfail=12 tests/integration)

# Daemons that can fail on purpose, for the tests of what a release never does: those of check-asan.
FAULTY := $(addprefix $(BUILD_DIR)/clang/asan/bin/,coordinatord workerd)
.PHONY: faulty
faulty: clang-generated ## daemons that can fail on purpose, for the integration tests
	+@$(WITH_ASAN) $(FAULTY)
check-int: faulty $(BUILD_DIR)/python/.made $(BUILD_DIR)/examples/trainer-c

# The kernels' tests once per instruction set that this machine can narrow itself to.
KERNEL_TESTS := $(filter $(O)/tests/unit/kernels/%,$(UNIT))

.PHONY: check-kernels
check-kernels: $(KERNEL_TESTS) ## kernel tests with each narrower instruction set
	@for isa in generic avx2 avx512 avx512bf16 native; do for t in $(KERNEL_TESTS); do \
	  echo "== $$t ($$isa)"; SKERRY_CPU_ISA=$$isa $$t || exit 1; done; done

# A stand-in for NVIDIA's management library, beside the test that opens it.
$(O)/tests/unit/kernels/test_watch: | $(O)/tests/unit/kernels/libnvidia-ml.so.1
$(O)/tests/unit/kernels/libnvidia-ml.so.1: tests/unit/kernels/fake_nvml.c tests/unit/kernels/fake_nvml.h
	$(call say,CC)mkdir -p $(@D) && $(CC) -std=c11 -I. -fPIC -shared -Wall -Wextra -Wno-unused-parameter \
	  $(if $(WERROR),-Werror) -o $@ $<

# What we compare with, from PyPI, in one virtual environment for all checkouts (VENV=DIR: another).
VENV ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/skerry/references
$(VENV)/.installed: deploy/test-venv.sh
	PYTHON=$(PYTHON) deploy/test-venv.sh $(VENV)

.PHONY: check-transformers
check-transformers: all $(TOOLS) $(VENV)/.installed ## exported language models against transformers
	SKERRY_BUILD=$(BUILD_DIR) $(VENV)/bin/python tests/reference/transformers_check.py

.PHONY: check-latents
check-latents: all $(TOOLS) $(VENV)/.installed ## frozen networks, tokenizers, text DiT against transformers and diffusers (T=test_x.py: one)
	SKERRY_BUILD=$(BUILD_DIR) $(VENV)/bin/python -m pytest -q -s -p no:cacheprovider $(if $(T),tests/latents/$(T),tests/latents)

.PHONY: check-trainers
check-trainers: all $(BUILD_DIR)/python/.made $(VENV)/.installed ## the examples of trainers with transformers, peft and diffusers, event files with TensorBoard, on real daemons
	SKERRY_BIN=$(BIN) SKERRY_BUILD=$(BUILD_DIR) $(VENV)/bin/python -m pytest -q -p no:cacheprovider tests/trainers

.PHONY: check-deploy
check-deploy: all $(VENV)/.installed ## files for clouds and clusters against their schemas and our programs
	SKERRY_BIN=$(BIN) $(VENV)/bin/python -m pytest -q -p no:cacheprovider tests/deploy
