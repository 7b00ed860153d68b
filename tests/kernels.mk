# The kernels' tests once per instruction set that this machine can narrow itself to.
KERNEL_TESTS := $(filter $(O)/tests/unit/kernels/%,$(UNIT))

.PHONY: check-kernels
check-kernels: $(KERNEL_TESTS) ## kernel tests with each narrower instruction set
	@for isa in generic avx2 avx512 native; do for t in $(KERNEL_TESTS); do \
	  echo "== $$t ($$isa)"; SKERRY_CPU_ISA=$$isa $$t || exit 1; done; done
	@for t in $(filter %test_matmul,$(KERNEL_TESTS)); do \
	  echo "== $$t (oneDNN)"; SKERRY_CPU_MATMUL=onednn $$t || exit 1; done

# A stand-in for NVIDIA's management library, beside the test that opens it.
$(O)/tests/unit/kernels/test_watch: | $(O)/tests/unit/kernels/libnvidia-ml.so.1
$(O)/tests/unit/kernels/libnvidia-ml.so.1: tests/unit/kernels/fake_nvml.c tests/unit/kernels/fake_nvml.h
	$(call say,CC)mkdir -p $(@D) && $(CC) -std=c11 -I. -fPIC -shared -Wall -Wextra -Wno-unused-parameter \
	  $(if $(WERROR),-Werror) -o $@ $<
