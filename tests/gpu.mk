# What tests/gpu/run.sh runs on a card; without CUDA, on the CPU, to try the script.
# docs/gpu-results.md has what was measured.
.PHONY: gpu-tests gpu-bundle gpu-dry-run
GPU := $(O)/gpu
CHECK_NAMES := $(GPU_TEST_NAMES) comm contribute_card frozen_stream islands
GPU_OBJ := $(CHECK_NAMES:%=$(GPU)/test_%.o) $(GPU)/check_ops.o $(GPU)/bench.o \
           $(if $(filter 1,$(CUDA)),$(GPU)/guard_card.o)
GPU_CHOICE := $(if $(filter 1,$(CUDA)),-DGUARD_DEVICE='guard_device()' -DCARD_DEVICE='guard_device()' -DHOPPER_SAMPLES=100)
define gpu_test
$$(GPU)/test_%.o: $(1)/test_%.c $$(STAMP) | $$(PB_H)
	$$(call say,CC)mkdir -p $$(@D) && $$(CC) $$(ALL_CPPFLAGS) $$(GPU_CHOICE) -Dmain=main_$$* \
	  -D_cmocka_run_group_tests=run_group $$(ALL_CFLAGS) \
	  -Wno-missing-prototypes -MMD -MP -c -o $$@ $$<
endef
$(foreach d,tests/unit/kernels tests/unit/worker/engine tests/unit/worker/frozen tests/gpu,$(eval $(call gpu_test,$(d))))
$(GPU)/check_ops.o: ALL_CPPFLAGS += -DTESTS='$(foreach t,$(CHECK_NAMES),TEST($(t)))'
$(GPU)/%.o: tests/gpu/%.c $(STAMP) tests/gpu.mk
	$(call say,CC)mkdir -p $(@D) && $(CC) $(ALL_CPPFLAGS) $(ALL_CFLAGS) -MMD -MP -c -o $@ $<
$(GPU)/check_ops: $(GPU_OBJ) $(LIBS_worker)
	$(call say,LD)$(CC) $(ALL_LDFLAGS) -o $@ $^ $(LINK_worker) $(TESTLINK) $(ALL_LDLIBS)
$(GPU)/train_bench: $(GPU)/train_bench.o $(LIBS_worker)
	$(call say,LD)$(CC) $(ALL_LDFLAGS) -o $@ $^ $(LINK_worker) $(ALL_LDLIBS)

PROBES := tests/tools/worker/train_probe tests/tools/worker/llama_probe
gpu-tests: $(BINS) $(GPU)/check_ops $(GPU)/train_bench $(PROBES:%=$(O)/%) ## build what tests/gpu/run.sh runs on a card

gpu-dry-run: ## tests/gpu/run.sh from end to end on the CPU, with toy sizes
	@PYTHON=$(PYTHON) BUILD_DIR=$(BUILD_DIR)/gpu-dry-run tests/gpu/run.sh --dry-run cpu

# The same programs with the libraries they need, for a machine with a card and a driver where
# nothing can be built.  They find their libraries from where they lie.
BUNDLE := $(BUILD_DIR)/gpu-bundle
BUNDLE_RPATH := -Wl,-S,--disable-new-dtags,-rpath,'$$ORIGIN/../lib:$$ORIGIN/../../lib:$$ORIGIN/../../../../lib'
# Of the C library and the compiler's own the machine must have its own, as new as ours.
BUNDLE_NOT := ^(libc|libm|libpthread|libdl|librt|libresolv|libstdc\+\+|libgcc_s|ld-linux-x86-64)\.so
# The dictionary is long enough to find the machine code of the kernels again in each program.
BUNDLE_XZ ?= xz -T1 --lzma2=preset=6,dict=64MiB
define bundled
BUNDLED += $$(BUNDLE)/$(1)
$$(BUNDLE)/$(1): $(2)
	$$(call say,LD)mkdir -p $$(@D) && $$(CC) $$(ALL_LDFLAGS) $$(BUNDLE_RPATH) -o $$@ $$^ $(3) $$(ALL_LDLIBS)
endef
$(foreach p,$(PROGRAMS),$(eval $(call bundled,bin/$(p),$(O)/$(MAIN_$(p))/main.o $(LIBS_$(MAIN_$(p))),$$(LINK_$(MAIN_$(p))))))
$(eval $(call bundled,release/gpu/check_ops,$(GPU_OBJ) $(LIBS_worker),$$(LINK_worker) $$(TESTLINK)))
$(eval $(call bundled,release/gpu/train_bench,$(GPU)/train_bench.o $(LIBS_worker),$$(LINK_worker)))
$(foreach p,$(PROBES),$(eval $(call bundled,release/$(p),$(O)/$(p).o $(LIBS_worker),$$(LINK_worker))))

gpu-bundle: $(if $(filter 1,$(CUDA)),$(BUILD_DIR)/gpu-bundle.tar.xz) ## the same with all their libraries in one archive (CUDA_ARCHS=90 for a small one)
	$(if $(filter 1,$(CUDA)),,@echo 'gpu-bundle: needs nvcc, and no CUDA=0: programs without CUDA use no card' >&2; exit 1)
$(BUILD_DIR)/gpu-bundle.tar.xz: $(BUNDLED)
	@rm -rf $(BUNDLE)/lib && mkdir -p $(BUNDLE)/lib
	@ldd $(BUNDLED) | awk '$$3 ~ /^\// { print $$1, $$3 }' | sort -u | grep -vE '$(BUNDLE_NOT)' | \
	  while read -r name file; do cp -L "$$file" $(BUNDLE)/lib/"$$name"; done
	@git rev-parse --short HEAD >$(BUNDLE)/COMMIT 2>/dev/null || echo unknown >$(BUNDLE)/COMMIT
	$(call say,XZ)tar c -C $(BUNDLE) . | $(BUNDLE_XZ) >$@.new && mv $@.new $@
