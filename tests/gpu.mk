# The CUDA backend: what can be checked without a card, and the tests for one.
# docs/gpu-results.md says what was measured; tests/gpu/run.sh runs everything on a card.
EMU := $(O)/emulate
EMU_CPPFLAGS = -Itests/gpu/emulate $(filter-out -pthread,$(ALL_CPPFLAGS))
EMU_FLAGS := -O2 -g -ffp-contract=off -fPIE -Wall -Wextra -Wno-unused-parameter \
             -Wno-unused-function -Wno-missing-field-initializers -Wno-unknown-pragmas \
             $(if $(WERROR),-Werror)
GPU_TEST_NAMES := adaln elementwise matmul decoder attention
GPU_DEVICE := -DGUARD_DEVICE='"cuda:0"'

.PHONY: check-cuda check-emulated gpu-tests
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
$(EMU_TESTS): $(EMU)/%: $(EMU)/%.o $(EMU_OBJ) $(LIBS_kernels)
	$(call say,LD)g++ -o $@ $(filter %.o,$^) $(filter %.a,$^) $(filter-out -lcudart_static,$(LINK_kernels)) \
	  $(LINK_base) $(TESTLINK) -lm -lpthread

# With threads forwards and backwards, and with each thing that cuBLASLt may decline.
check-emulated: $(EMU_TESTS) $(EMU)/libcublasLt.so.13 ## CUDA kernels on the CPU, thread by thread (needs nvcc, no card)
	@export SKERRY_CUDA_PROBE=1 LD_LIBRARY_PATH=$(EMU); for t in $(EMU_TESTS); do \
	  for reverse in 0 1; do \
	    echo "== $$t (reverse $$reverse)"; SKERRY_EMULATE_REVERSE=$$reverse $$t || exit 1; done; done; \
	for lt in strict plain none; do \
	  echo "== $(EMU)/test_matmul (cuBLASLt $$lt)"; SKERRY_EMULATE_LT=$$lt $(EMU)/test_matmul || exit 1; done

# ---- on a card: one program, as the machine code of the kernels is large ----
GPU := $(O)/gpu
GPU_OBJ := $(GPU_TEST_NAMES:%=$(GPU)/test_%.o) $(addprefix $(GPU)/,check_ops.o pinned.o bench.o)
$(GPU)/test_%.o: tests/unit/kernels/test_%.c $(STAMP)
	$(call say,CC)mkdir -p $(@D) && $(CC) $(ALL_CPPFLAGS) $(GPU_DEVICE) -Dmain=main_$* $(ALL_CFLAGS) \
	  -Wno-missing-prototypes -MMD -MP -c -o $@ $<
$(GPU)/%.o: tests/gpu/%.c $(STAMP)
	$(call say,CC)mkdir -p $(@D) && $(CC) $(ALL_CPPFLAGS) $(ALL_CFLAGS) -MMD -MP -c -o $@ $<
$(GPU)/check_ops: $(GPU_OBJ) $(LIBS_kernels)
	$(call say,LD)$(CC) $(ALL_LDFLAGS) -o $@ $^ $(LINK_kernels) $(LINK_base) $(TESTLINK) $(ALL_LDLIBS)

gpu-tests: $(GPU)/check_ops ## build the tests and benchmarks that tests/gpu/run.sh runs on a card

.SECONDARY: $(EMU_TESTS:%=%.o)
else

check-cuda check-emulated gpu-tests:
	@echo '$@: nothing to do: no nvcc at $(NVCC), or CUDA=0'

endif

lint: check-cuda
