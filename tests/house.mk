# Our programs beside those of a commit, BASE, which is built under build/house/, without CUDA.
BASE ?= origin/main
BESIDE = CC='$(CC)' $(PYTHON) tests/house/$(1).py --commit $(BASE) --out $(BUILD_DIR)/figures/$(1).json $(addprefix --only ,$(ONLY))

.PHONY: house-bits house-speed
house-bits: all ## do small jobs give the bits that commit BASE gave? (BASE=REV ONLY=name)
	@$(call BESIDE,bits) --new $(BIN)

house-speed: all $(BENCH_BINS) ## are steps, operations, folding, rpc and the start as fast as with commit BASE?
	@$(call BESIDE,speed) --new $(BUILD_DIR)
