# The figures of the house: what a reader meets, how much of it, and that the bits are as before.
.PHONY: house
house: all ## the figures of the house, into build/figures/house.json
	@$(PYTHON) tests/house/house.py

# The programs of a commit beside ours: BASE is built under build/house/, without CUDA.
BASE ?= origin/main
BESIDE = CC='$(CC)' $(PYTHON) tests/house/$(1).py --commit $(BASE) --out $(BUILD_DIR)/figures/$(1).json $(addprefix --only ,$(ONLY))

.PHONY: house-bits house-speed
house-bits: all ## do small jobs give the bits that commit BASE gave? (BASE=REV ONLY=name)
	@$(call BESIDE,bits) --new $(BIN)

house-speed: all $(BENCH_BINS) ## are steps, operations, folding, rpc and the start as fast as with commit BASE?
	@$(call BESIDE,speed) --new $(BUILD_DIR)
