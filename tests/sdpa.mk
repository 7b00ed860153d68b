# cuDNN's attention without a card: with a library that works the graphs out on the CPU, and
# with the real one, which makes plans for a card that is only described; and how the algorithm
# of a product is chosen.
ifeq ($(CUDA),1)

$(EMU)/libcudnn.so.9: tests/gpu/emulate/cudnn.c $(STAMP)
	$(call say,EMU)mkdir -p $(@D) && gcc -std=c11 $(EMU_CPPFLAGS) $(EMU_FLAGS) -fPIC -shared -o $@ $< -lm
$(EMU)/test_sdpa.o: tests/gpu/emulate/test_sdpa.c $(STAMP)
	$(call say,EMU)mkdir -p $(@D) && gcc -std=c11 $(EMU_CPPFLAGS) $(GPU_DEVICE) $(EMU_FLAGS) -MMD -MP -c -o $@ $<
$(EMU)/test_sdpa: $(EMU)/test_sdpa.o $(EMU_OBJ) $(LIBS_kernels)
	$(call say,LD)g++ -rdynamic -o $@ $(filter %.o,$^) $(filter %.a,$^) $(filter-out -lcudart_static,$(LINK_kernels)) \
	  $(LINK_common/base) $(TESTLINK) -lm -lpthread

.PHONY: check-sdpa-emulated check-tuned-emulated
check-emulated: check-sdpa-emulated check-tuned-emulated $(EMU)/libcudnn.so.9
check-tuned-emulated: $(EMU)/test_matmul $(EMU)/libcublasLt.so.13
	@SKERRY_EMULATE_LT=tune SKERRY_CUDA_PROBE=1 LD_LIBRARY_PATH=$(EMU) $(EMU)/test_matmul
check-sdpa-emulated: $(EMU)/test_sdpa $(EMU)/libcublasLt.so.13 $(EMU)/libcudnn.so.9
	@cd $(EMU) && SKERRY_CUDA_PROBE=1 LD_LIBRARY_PATH=. ./test_sdpa

# ---- the real cuDNN, where it is installed -------------------------------
CUDNN_HOME ?= $(CUDA_HOME)
CUDNN := $(firstword $(wildcard $(CUDNN_HOME)/lib64/libcudnn.so.9 $(CUDNN_HOME)/lib/libcudnn.so.9))
DRIVER_STUB := $(wildcard $(CUDA_HOME)/lib64/stubs/libcuda.so)

# The names of the stub that the driver of tests/gpu/emulate does not have itself.
$(EMU)/driver_names.c: tests/gpu/emulate/cuda_driver.c $(STAMP)
	$(call say,GEN)mkdir -p $(@D) && nm -D --defined-only $(DRIVER_STUB) | \
	  sed -nE 's/.* T (cu[A-Za-z0-9_]+)$$/__attribute__((weak)) int \1(void) { return 34; }/p' >$@
$(EMU)/driver/libcuda.so.1: tests/gpu/emulate/cuda_driver.c $(EMU)/driver_names.c
	$(call say,EMU)mkdir -p $(@D) && gcc -std=gnu11 -w -fPIC -shared -o $@ $^ -ldl
$(EMU)/sdpa_plans: tests/gpu/emulate/sdpa_plans.c $(addprefix $(O)/kernels/cuda/,sdpa_graph.o lib.o) \
  $(call lib,common/base)
	$(call say,LD)gcc -std=c11 $(EMU_CPPFLAGS) $(EMU_FLAGS) -o $@ $^ $(LINK_common/base) -lm -ldl

.PHONY: check-cudnn
check-cudnn: $(if $(CUDNN),$(if $(DRIVER_STUB),$(EMU)/sdpa_plans $(EMU)/driver/libcuda.so.1)) ## the installed cuDNN plans our attention for a described H200 (needs nvcc, cuDNN, no card)
ifneq ($(and $(CUDNN),$(DRIVER_STUB)),)
	@LD_LIBRARY_PATH=$(EMU)/driver:$(dir $(CUDNN)) $(EMU)/sdpa_plans
else
	@echo 'check-cudnn: nothing to do: no libcudnn.so.9 under $(CUDNN_HOME), or no driver stub in the toolkit'
endif

else

.PHONY: check-cudnn
check-cudnn:
	@echo '$@: nothing to do: no nvcc at $(NVCC), or CUDA=0'

endif
