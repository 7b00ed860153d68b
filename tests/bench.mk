# Measurements.  They want a quiet machine; each prints what it compared.
BENCH_BINS = $(patsubst tests/bench/%.c,$(O)/tests/bench/%,$(wildcard tests/bench/*/bench_*.c))
VENV = $(BUILD_DIR)/venv
CIFAR10 ?= $(firstword $(wildcard data/cifar10 ../shared/data/cifar10) data/cifar10)

.PHONY: bench quality
bench: all $(BENCH_BINS) $(VENV)/.torch ## measure every figure, write build/figures/bench.json
	$(PYTHON) tests/bench/bench.py --build $(BUILD_DIR) --torch $(VENV)/bin/python \
	  --out $(BUILD_DIR)/figures/bench.json $(addprefix --only ,$(FIGURE))

# The newest PyTorch of PyPI, in a virtual environment of its own.
$(VENV)/.torch:
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip -q install torch numpy
	touch $@

quality: all ## held-out loss of DiLoCo against one big-batch worker (CIFAR10=DIR), about half an hour
	$(PYTHON) tests/quality/quality.py --build $(BUILD_DIR) --data $(CIFAR10)
