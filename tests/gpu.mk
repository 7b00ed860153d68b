# The CUDA backend: what can be checked without a card, and the tests for one.
# docs/gpu-results.md says what was measured; tests/gpu/run.sh runs everything on a card.
EMU := $(O)/emulate
EMU_CPPFLAGS = -Itests/gpu/emulate $(filter-out -pthread,$(ALL_CPPFLAGS))
EMU_FLAGS := -O2 -g -ffp-contract=off -fPIE -Wall -Wextra -Wno-unused-parameter \
             -Wno-unused-function -Wno-missing-field-initializers -Wno-unknown-pragmas \
             $(if $(WERROR),-Werror)
GPU_TEST_NAMES := adaln elementwise matmul decoder attention $(if $(filter 1,$(CUDA)),codec)
GPU_DEVICE := $(if $(filter 1,$(CUDA)),-DGUARD_DEVICE='"cuda:0"' -DCARD_DEVICE='"cuda:0"')

.PHONY: check-cuda check-emulated gpu-tests gpu-bundle gpu-dry-run
ifeq ($(CUDA),1)

# ---- what ptxas and the machine code say --------------------------------
CUBINS := $(foreach a,$(CUDA_ARCHS),$(CU:kernels/cuda/%.cu=$(CUO)/cubin/sm_$(a)/%.cubin))
define cubin
$(CUO)/cubin/sm_$(1)/%.cubin: kernels/cuda/%.cu $(CUO)/.flags $(wildcard kernels/cuda/*.cuh kernels/cuda/*.h)
	$$(call say,PTXAS)mkdir -p $$(@D) && $$(NVCC) $$(CU_CPPFLAGS) -std=c++17 -O3 \
	  -arch=sm_$(1) -cubin -Xptxas -v -o $$@ $$< 2>$$(@:.cubin=.log) || { cat $$(@:.cubin=.log); exit 1; }
endef
$(foreach a,$(CUDA_ARCHS),$(eval $(call cubin,$(a))))

check-cuda: $(CUBINS) ## CUDA kernels: no spills, 128-bit accesses, tensor cores (needs nvcc, no card)
	@CUDA_HOME=$(CUDA_HOME) $(PYTHON) tests/gpu/check_ptxas.py $(CUO)/cubin

# ---- the kernels thread by thread on the CPU ----------------------------
EMU_OBJ := $(CU:kernels/cuda/%.cu=$(EMU)/%.o) $(addprefix $(EMU)/,fibers.o runtime.o memory.o)
EMU_TESTS := $(GPU_TEST_NAMES:%=$(EMU)/test_%)

$(EMU)/%.o: kernels/cuda/%.cu $(STAMP)
	$(call say,EMU)mkdir -p $(@D) && g++ -x c++ -std=c++17 $(EMU_CPPFLAGS) $(EMU_FLAGS) -MMD -MP -c -o $@ $<
$(EMU)/fibers.o: tests/gpu/emulate/fibers.cc $(STAMP)
	$(call say,EMU)mkdir -p $(@D) && g++ -std=c++17 $(EMU_CPPFLAGS) $(EMU_FLAGS) -MMD -MP -c -o $@ $<
$(EMU)/runtime.o $(EMU)/memory.o: $(EMU)/%.o: tests/gpu/emulate/%.c $(STAMP)
	$(call say,EMU)mkdir -p $(@D) && gcc -std=c11 $(EMU_CPPFLAGS) $(EMU_FLAGS) -MMD -MP -c -o $@ $<
$(EMU)/libcublasLt.so.13: tests/gpu/emulate/cublaslt.c $(STAMP)
	$(call say,EMU)mkdir -p $(@D) && gcc -std=c11 $(EMU_CPPFLAGS) $(EMU_FLAGS) -fPIC -shared -o $@ $< -lm
$(EMU)/test_%.o: tests/unit/kernels/test_%.c $(STAMP)
	$(call say,EMU)mkdir -p $(@D) && gcc -std=c11 $(EMU_CPPFLAGS) $(GPU_DEVICE) $(EMU_FLAGS) -MMD -MP -c -o $@ $<
$(EMU)/test_%.o: tests/gpu/test_%.c $(STAMP)
	$(call say,EMU)mkdir -p $(@D) && gcc -std=c11 $(EMU_CPPFLAGS) $(GPU_DEVICE) $(EMU_FLAGS) -MMD -MP -c -o $@ $<
$(EMU_TESTS): $(EMU)/%: $(EMU)/%.o $(EMU_OBJ) $(LIBS_kernels)
	$(call say,LD)g++ -o $@ $(filter %.o,$^) $(filter %.a,$^) $(filter-out -lcudart_static,$(LINK_kernels)) \
	  $(LINK_common/base) $(TESTLINK) -lm -lpthread

# With threads forwards and backwards, and with each thing that cuBLASLt may decline.
check-emulated: $(EMU_TESTS) $(EMU)/libcublasLt.so.13 ## CUDA kernels on the CPU, thread by thread (needs nvcc, no card)
	@export SKERRY_CUDA_PROBE=1 LD_LIBRARY_PATH=$(EMU); for t in $(EMU_TESTS); do \
	  for reverse in 0 1; do \
	    echo "== $$t (reverse $$reverse)"; SKERRY_EMULATE_REVERSE=$$reverse $$t || exit 1; done; done; \
	for lt in strict plain none; do \
	  echo "== $(EMU)/test_matmul (cuBLASLt $$lt)"; SKERRY_EMULATE_LT=$$lt $(EMU)/test_matmul || exit 1; done

.SECONDARY: $(EMU_TESTS:%=%.o)
else

check-cuda check-emulated:
	@echo '$@: nothing to do: no nvcc at $(NVCC), or CUDA=0'

endif

lint: check-cuda

# ---- what tests/gpu/run.sh runs; without CUDA, on the CPU, to try the script ----
GPU := $(O)/gpu
CHECK_NAMES := $(GPU_TEST_NAMES) comm contribute_card
GPU_OBJ := $(CHECK_NAMES:%=$(GPU)/test_%.o) $(GPU)/check_ops.o $(GPU)/bench.o \
           $(if $(filter 1,$(CUDA)),$(GPU)/pinned.o)
$(GPU)/test_%.o: tests/unit/kernels/test_%.c $(STAMP)
	$(call say,CC)mkdir -p $(@D) && $(CC) $(ALL_CPPFLAGS) $(GPU_DEVICE) -Dmain=main_$* $(ALL_CFLAGS) \
	  -Wno-missing-prototypes -MMD -MP -c -o $@ $<
$(GPU)/test_%.o: tests/gpu/test_%.c $(STAMP)
	$(call say,CC)mkdir -p $(@D) && $(CC) $(ALL_CPPFLAGS) $(GPU_DEVICE) -Dmain=main_$* $(ALL_CFLAGS) \
	  -Wno-missing-prototypes -MMD -MP -c -o $@ $<
$(GPU)/test_%.o: tests/unit/worker/kinds/test_%.c $(STAMP) | $(PB_H)
	$(call say,CC)mkdir -p $(@D) && $(CC) $(ALL_CPPFLAGS) $(GPU_DEVICE) -Dmain=main_$* $(ALL_CFLAGS) \
	  -Wno-missing-prototypes -MMD -MP -c -o $@ $<
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

gpu-bundle: $(BUILD_DIR)/gpu-bundle.tar.xz ## the same with all their libraries in one archive (CUDA_ARCHS=90 for a small one)
$(BUILD_DIR)/gpu-bundle.tar.xz: $(BUNDLED)
	@rm -rf $(BUNDLE)/lib && mkdir -p $(BUNDLE)/lib
	@ldd $(BUNDLED) | awk '$$3 ~ /^\// { print $$1, $$3 }' | sort -u | grep -vE '$(BUNDLE_NOT)' | \
	  while read -r name file; do cp -L "$$file" $(BUNDLE)/lib/"$$name"; done
	@git rev-parse --short HEAD >$(BUNDLE)/COMMIT 2>/dev/null || echo unknown >$(BUNDLE)/COMMIT
	$(call say,XZ)tar c -C $(BUNDLE) . | $(BUNDLE_XZ) >$@.new && mv $@.new $@
