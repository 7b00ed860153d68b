# The CUDA backend, checked without a card: what ptxas says of the kernels, the kernels and
# whole steps on an emulated card, the libraries of a card against stand-ins.
EMU := $(O)/emulate
EMU_CPPFLAGS = -Itests/gpu/emulate $(filter-out -pthread,$(ALL_CPPFLAGS))
EMU_FLAGS := -O2 -g -ffp-contract=off -fPIE -Wall -Wextra -Wno-unused-parameter \
             -Wno-unused-function -Wno-missing-field-initializers -Wno-unknown-pragmas \
             $(if $(WERROR),-Werror)
EMU_CC = $(call say,EMU)mkdir -p $(@D) && gcc -std=c11 $(EMU_CPPFLAGS)
# A card faults where a vector is not aligned, most CPUs do not.
EMU_CXX = $(call say,EMU)mkdir -p $(@D) && g++ -std=c++17 $(EMU_CPPFLAGS) $(EMU_FLAGS) \
          -fsanitize=alignment -fsanitize-undefined-trap-on-error
EMU_LD = $(call say,LD)g++ $(1) -o $@ $(filter %.o,$^) $(filter %.a,$^) \
         $(filter-out -lcudart_static,$(2)) $(LINK_common/base) $(TESTLINK) -lm -lpthread
GPU_TEST_NAMES := adaln elementwise matmul decoder frozen_ops attention $(if $(filter 1,$(CUDA)),codec)
GPU_DEVICE := $(if $(filter 1,$(CUDA)),-DGUARD_DEVICE='"cuda:0"' -DCARD_DEVICE='"cuda:0"')

##@ CUDA
.PHONY: check-cuda check-emulated check-nccl check-cudnn
ifeq ($(CUDA),1)

# ---- what ptxas and the machine code say --------------------------------
check-cuda: $(OBJ_kernels_cuda) ## CUDA kernels: no spills, 128-bit accesses, tensor cores (needs nvcc, no card)
	@CUDA_HOME=$(CUDA_HOME) $(PYTHON) tests/gpu/check_ptxas.py $(CUO)

# ---- the kernels thread by thread on the CPU ----------------------------
EMU_ENV := SKERRY_CUDA_PROBE=1 LD_LIBRARY_PATH=$(abspath $(EMU)) XDG_CACHE_HOME=$(abspath $(EMU))/cache
EMU_OBJ := $(CU:kernels/cuda/%.cu=$(EMU)/%.o) $(addprefix $(EMU)/,fibers.o runtime.o memory.o)
EMU_TESTS := $(GPU_TEST_NAMES:%=$(EMU)/test_%)

$(EMU)/%.o: kernels/cuda/%.cu $(STAMP)
	$(EMU_CXX) -x c++ -MMD -MP -c -o $@ $<
$(EMU)/fibers.o: tests/gpu/emulate/fibers.cc $(STAMP)
	$(EMU_CXX) -MMD -MP -c -o $@ $<
$(EMU)/runtime.o $(EMU)/memory.o: $(EMU)/%.o: tests/gpu/emulate/%.c $(STAMP)
	$(EMU_CC) $(EMU_FLAGS) -MMD -MP -c -o $@ $<
$(EMU)/libcublasLt.so.13: tests/gpu/emulate/cublaslt.c $(STAMP)
	$(EMU_CC) $(EMU_FLAGS) -fPIC -shared -o $@ $< -lm
$(EMU)/test_%.o: tests/unit/kernels/test_%.c $(STAMP)
	$(EMU_CC) $(GPU_DEVICE) $(EMU_FLAGS) -MMD -MP -c -o $@ $<
$(EMU)/test_%.o: tests/gpu/test_%.c $(STAMP)
	$(EMU_CC) $(GPU_DEVICE) $(EMU_FLAGS) -MMD -MP -c -o $@ $<
$(EMU_TESTS): $(EMU)/%: $(EMU)/%.o $(EMU_OBJ) $(LIBS_kernels)
	$(call EMU_LD,,$(LINK_kernels))

# With threads forwards and backwards, and with each thing that cuBLASLt may decline.
check-emulated: $(EMU_TESTS) $(EMU)/libcublasLt.so.13 ## CUDA kernels on the CPU, thread by thread (needs nvcc, no card)
	@export $(EMU_ENV); for t in $(EMU_TESTS); do \
	  for reverse in 0 1; do \
	    echo "== $$t (reverse $$reverse)"; SKERRY_EMULATE_REVERSE=$$reverse $$t || exit 1; done; done; \
	for lt in strict plain none; do \
	  echo "== $(EMU)/test_matmul (cuBLASLt $$lt)"; SKERRY_EMULATE_LT=$$lt $(EMU)/test_matmul || exit 1; done

.SECONDARY: $(EMU_TESTS:%=%.o)

# ---- training steps and contributions on the emulated card ----------------
# Steps plain, and as graphs, on streams that are late; what has several streams with all of them
# early or late, or every other one.  The emulated libraries ask the program to keep their work,
# hence -rdynamic.
EMU_WORKER := $(addprefix $(EMU)/,test_step test_contribute_card)
$(EMU)/test_step.o: tests/gpu/emulate/test_step.c $(STAMP)
	$(EMU_CC) $(EMU_FLAGS) -MMD -MP -c -o $@ $<
$(EMU)/test_contribute_card.o: tests/unit/worker/engine/test_contribute_card.c $(STAMP)
	$(EMU_CC) $(GPU_DEVICE) $(EMU_FLAGS) -MMD -MP -c -o $@ $<
$(EMU_WORKER): $(EMU)/%: $(EMU)/%.o $(EMU_OBJ) $(LIBS_worker)
	$(call EMU_LD,-rdynamic,$(LINK_worker))

.PHONY: check-step-emulated
check-emulated: check-step-emulated
check-step-emulated: $(EMU_WORKER) $(EMU)/libcublasLt.so.13 $(EMU)/libcudnn.so.9
	@export $(EMU_ENV); SKERRY_EMULATE_LATE=255 $(EMU)/test_step || exit 1; \
	for late in 0 85 170 255; do \
	  echo "== late streams $$late"; export SKERRY_EMULATE_LATE=$$late; \
	  $(EMU)/test_step test_streamed && $(EMU)/test_contribute_card || exit 1; done

# ---- a card that is short of memory --------------------------------------
$(EMU)/test_short.o: tests/gpu/emulate/test_short.c $(STAMP)
	$(EMU_CC) $(GPU_DEVICE) $(EMU_FLAGS) -MMD -MP -c -o $@ $<
$(EMU)/test_short: $(EMU)/test_short.o $(EMU_OBJ) $(LIBS_kernels)
	$(call EMU_LD,-rdynamic,$(LINK_kernels))

.PHONY: check-short-emulated
check-emulated: check-short-emulated
check-short-emulated: $(EMU)/test_short $(EMU)/libcublasLt.so.13
	@rm -rf $(EMU)/short; $(EMU_ENV) XDG_CACHE_HOME=$(abspath $(EMU))/short $(EMU)/test_short

# ---- the communicator of cards against a stand-in for NCCL ---------------
NCCL_TEST := $(O)/emulate-nccl
NCCL_SRC := kernels/device/comm_open.c kernels/cpu/comm_local.c kernels/cuda/comm_nccl.c kernels/cuda/lib/lib.c \
            tests/gpu/emulate/fake_cards.c
NCCL_TESTS := $(addprefix $(NCCL_TEST)/,test_comm test_island)

$(NCCL_TEST)/libnccl.so.2: tests/gpu/emulate/nccl.c $(STAMP)
	$(call say,CC)mkdir -p $(@D) && $(CC) $(ALL_CPPFLAGS) $(ALL_CFLAGS) -fPIC -shared -o $@ $<
$(NCCL_TEST)/test_comm: tests/unit/kernels/test_comm.c
$(NCCL_TEST)/test_island: tests/gpu/emulate/test_island.c worker/train/island.c worker/train/island.h
$(NCCL_TESTS): $(NCCL_SRC) $(wildcard kernels/*.h kernels/*/*.h kernels/*/*/*.h) $(LIBS_common/base)
	$(call say,CC)mkdir -p $(@D) && $(CC) $(ALL_CPPFLAGS) $(ALL_CFLAGS) -DCOMM_CARDS=1 \
	  -Ddevice_open=fake_card_open -Ddevice_close=fake_card_close -Ddevice_cards=fake_cards \
	  $(ALL_LDFLAGS) -o $@ \
	  $(filter %.c,$^) $(filter %.a,$^) $(LINK_common/base) $(TESTLINK) $(ALL_LDLIBS) -ldl

check-nccl: $(NCCL_TESTS) $(NCCL_TEST)/libnccl.so.2 ## NCCL's host logic against a stand-in (needs nvcc, no card)
	@for t in $(NCCL_TESTS); do LD_LIBRARY_PATH=$(NCCL_TEST) $$t || exit 1; done
check-emulated: check-nccl

# ---- cuDNN's attention without a card --------------------------------------
# With a library that works the graphs out on the CPU, and
# with the real one, which makes plans for a card that is only described; and how the algorithm
# of a product is chosen.
$(EMU)/libcudnn.so.9: tests/gpu/emulate/cudnn.c $(STAMP)
	$(EMU_CC) $(EMU_FLAGS) -fPIC -shared -o $@ $< -lm
$(EMU)/test_sdpa.o: tests/gpu/emulate/test_sdpa.c $(STAMP)
	$(EMU_CC) $(GPU_DEVICE) $(EMU_FLAGS) -MMD -MP -c -o $@ $<
$(EMU)/test_sdpa: $(EMU)/test_sdpa.o $(EMU_OBJ) $(LIBS_kernels)
	$(call EMU_LD,-rdynamic,$(LINK_kernels))

.PHONY: check-sdpa-emulated check-tuned-emulated
check-emulated: check-sdpa-emulated check-tuned-emulated $(EMU)/libcudnn.so.9
# Every way that applies to a product runs, and what was found fastest is not timed again, nor is a
# file that was cut off of any harm.
check-tuned-emulated: $(EMU)/test_matmul $(EMU)/libcublasLt.so.13
	@export SKERRY_EMULATE_LT=tune SKERRY_TUNE=say $(EMU_ENV) XDG_CACHE_HOME=$(abspath $(EMU))/tuned; rm -rf $(EMU)/tuned; \
	$(EMU)/test_matmul 2>$(EMU)/timed && grep -q 'dgelu.*apart' $(EMU)/timed && ! grep ' inf us' $(EMU)/timed && \
	$(EMU)/test_matmul >/dev/null 2>$(EMU)/timed && ! grep product $(EMU)/timed && \
	truncate -s -5 $(EMU)/tuned/skerry/products-* && \
	$(EMU)/test_matmul >/dev/null 2>$(EMU)/timed && grep -q product $(EMU)/timed
check-sdpa-emulated: $(EMU)/test_sdpa $(EMU)/libcublasLt.so.13 $(EMU)/libcudnn.so.9
	@cd $(EMU) && $(EMU_ENV) ./test_sdpa

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
$(EMU)/dnn_plans: tests/gpu/emulate/dnn_plans.c $(addprefix $(O)/kernels/cuda/lib/,dnn_graph.o sdpa_graph.o conv_graph.o lib.o) \
  $(call lib,common/base)
	$(call say,LD)mkdir -p $(@D) && gcc -std=c11 $(EMU_CPPFLAGS) $(EMU_FLAGS) -o $@ $^ $(LINK_common/base) -lm -ldl

check-cudnn: $(if $(CUDNN),$(if $(DRIVER_STUB),$(EMU)/dnn_plans $(EMU)/driver/libcuda.so.1)) ## the installed cuDNN plans our graphs for a described H200 (needs nvcc, cuDNN, no card)
ifneq ($(and $(CUDNN),$(DRIVER_STUB)),)
	@LD_LIBRARY_PATH=$(EMU)/driver:$(dir $(CUDNN)) $(EMU)/dnn_plans
else
	@echo 'check-cudnn: nothing to do: no libcudnn.so.9 under $(CUDNN_HOME), or no driver stub in the toolkit'
endif

else

check-cuda check-emulated check-cudnn check-nccl:
	@echo '$@: nothing to do: no nvcc at $(NVCC), or CUDA=0'

endif

lint: check-cuda
