# A workerd that can fail on purpose, for the tests of what a release never does; its tree is
# that of check-clang.
FAULTY := $(BUILD_DIR)/clang/debug/bin/workerd
.PHONY: faulty
faulty: ## workerd that can fail on purpose, for the integration tests
	@$(MAKE) --no-print-directory CC=clang CUDA=0 BUILD=debug BUILD_DIR=$(BUILD_DIR)/clang $(FAULTY)
check-int: faulty
