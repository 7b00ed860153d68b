# Measurements.  They want a quiet machine; each prints what it compared.
BENCH_BINS = $(patsubst tests/bench/%.c,$(O)/tests/bench/%,$(sort $(shell find tests/bench -name "bench_*.c")))
CIFAR10 ?= $(firstword $(wildcard data/cifar10 ../shared/data/cifar10) data/cifar10)

##@ Measure
.PHONY: bench bench-programs bench-latents quality
bench-programs: $(BENCH_BINS) ## that they still compile is part of `make test`
bench: all $(BENCH_BINS) $(VENV)/.installed ## measure every figure, write build/figures/bench.json
	$(PYTHON) tests/bench/bench.py --build $(BUILD_DIR) --torch $(VENV)/bin/python \
	  --out $(BUILD_DIR)/figures/bench.json $(addprefix --only ,$(FIGURE))

bench-latents: all $(TOOLS) $(BENCH_BINS) $(VENV)/.installed $(ENCODERS)/model_index.json ## latents and captions against diffusers and PyTorch, write build/figures/latents.json
	$(VENV)/bin/python tests/bench/latents.py --build $(BUILD_DIR) --encoders $(ENCODERS) --pictures $(DEMO)/emoji \
	  $(addprefix --only ,$(FIGURE))

.PHONY: bench-pipeline
bench-pipeline: all faulty $(addprefix $(O)/tests/bench/worker/,pipe/bench_pipeline bench_timed bench_island bench_train bench_llama) \
  $(addprefix $(O)/tests/unit/worker/train/,test_pipeline test_hybrid test_chains) ## what pipelines are worth, simulated and on CPU devices: build/figures/pipeline.json (PART=name: one)
	@$(PYTHON) tests/bench/pipeline.py --build $(BUILD_DIR) --out $(BUILD_DIR)/figures/pipeline.json $(addprefix --only ,$(PART))

.PHONY: bench-first
bench-first: all demo-data $(EXAMPLES)/text/train.jsonl ## whether the defaults train, real daemons on loopback: build/figures/first.json (FIGURE=name: one)
	@$(PYTHON) tests/bench/first.py --build $(BUILD_DIR) --emoji $(DEMO)/emoji --text $(EXAMPLES)/text $(addprefix --only ,$(FIGURE))

.PHONY: bench-fault
bench-fault: all $(FLEET) $(POISON) $(PACED) $(SHIM) $(O)/tests/unit/coordinator/rpc/test_report ## what machines that vanish cost, real daemons on loopback: build/figures/fault.json (KILLS=50, FIGURE=name: one)
	@$(PYTHON) tests/bench/fault.py --build $(BUILD_DIR) --kills $(or $(KILLS),50) $(addprefix --only ,$(FIGURE))
.PHONY: bench-beyond
bench-beyond: all $(O)/tests/unit/common/net/s3/test_log ## what an object store takes off the coordinator, what its faults and a lost coordinator cost: build/figures/beyond.json (FIGURE=name: one)
	@$(PYTHON) tests/bench/beyond.py --build $(BUILD_DIR) $(addprefix --only ,$(FIGURE))
.PHONY: bench-trainers
bench-trainers: all $(BUILD_DIR)/python/.made $(BUILD_DIR)/examples/trainer-c $(O)/tests/bench/worker/external/bench_external ## what trainers of the user's cost, and that they are exact: build/figures/trainers.json
	@$(PYTHON) tests/bench/trainers.py --build $(BUILD_DIR) --out $(BUILD_DIR)/figures/trainers.json

CARD_BENCH := $(O)/tests/bench/worker/bench_card $(if $(filter 1,$(CUDA)),$(addprefix $(O)/emulate/,test_step libcublasLt.so.13 libcudnn.so.9))
.PHONY: bench-card
bench-card: gpu-tests $(CARD_BENCH) $(VENV)/.installed ## what a card's steps keep and launch, counted without one: build/figures/card.json
	$(if $(filter 1,$(CUDA)),@$(MAKE) --no-print-directory gpu-bundle CUDA_ARCHS=90 BUILD_DIR=$(BUILD_DIR)/card)
	@$(PYTHON) tests/bench/card.py --build $(BUILD_DIR) --torch $(VENV)/bin/python --out $(BUILD_DIR)/figures/card.json \
	  $(if $(filter 1,$(CUDA)),--emulator $(O)/emulate/test_step --bundle $(BUILD_DIR)/card/gpu-bundle.tar.xz)

# Experiments that hold the papers' claims against us: hours, each resumable (what has
# ended is not run again), figures in build/figures/quality.json, tables and plots in
# build/quality/NAME.  SCALE=0.1 makes every run a tenth as long.
TEXT ?= $(firstword $(wildcard data/text ../shared/data/text) data/text)
SCALE ?= 1
LAB = $(PYTHON) tests/quality/$(1).py --build $(BUILD_DIR) --scale $(SCALE) $(addprefix --only ,$(RUN)) --data

quality: quality-diloco quality-ddm quality-dipaco quality-streaming quality-hetero quality-latents ## all experiments (CIFAR10=DIR TEXT=DIR SCALE=1 RUN=name), hours

.PHONY: quality-diloco quality-ddm quality-ddm-cifar10 quality-dipaco quality-streaming quality-hetero quality-latents
quality-diloco: all ## held-out loss of DiLoCo against one big-batch worker
	$(call LAB,diloco) $(CIFAR10)
quality-ddm: all demo-data ## experts against a monolith of equal FLOPs, on emoji
	$(call LAB,ddm) $(DEMO)/emoji --set emoji
quality-ddm-cifar10: all ## the same on CIFAR-10
	$(call LAB,ddm) $(CIFAR10) --set cifar10
quality-dipaco: all ## paths against dense models, routing, preemption
	$(call LAB,dipaco) $(TEXT)
quality-streaming: all ## fragments and overlap against plain DiLoCo
	$(call LAB,streaming) $(TEXT)
quality-hetero: all ## workers of unlike speed
	$(call LAB,hetero) $(TEXT)
quality-latents: all demo-data $(ENCODERS)/model_index.json ## experts against a monolith of equal FLOPs, on latents of emoji, told their names
	$(call LAB,latents) $(DEMO)/emoji --encoders $(ENCODERS)
