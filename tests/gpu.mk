# The CUDA backend without a card: see tests/gpu/README.md.
EMU  := $(O)/emulate
EMU_CPPFLAGS = -Itests/gpu/emulate $(filter-out -pthread,$(ALL_CPPFLAGS))
EMU_OPT := -O1 -g -ffp-contract=off -Wall -Wextra -Wno-unused-parameter -Wno-unused-function \
           -Wno-missing-field-initializers $(if $(WERROR),-Werror)
EMU_OBJ := $(patsubst kernels/cuda/%.cu,$(EMU)/%.o,$(wildcard kernels/cuda/*.cu)) \
           $(EMU)/fibers.o $(EMU)/runtime.o $(EMU)/memory.o
EMU_TESTS := $(patsubst tests/unit/kernels/%.c,$(EMU)/%,$(wildcard tests/unit/kernels/test_*.c))

$(EMU)/%.o: kernels/cuda/%.cu $(STAMP)
	$(call say,EMU)mkdir -p $(@D) && g++ -x c++ -std=c++17 $(EMU_CPPFLAGS) $(EMU_OPT) -Wno-unknown-pragmas \
	  -MMD -MP -c -o $@ $<
$(EMU)/fibers.o: tests/gpu/emulate/fibers.cc $(STAMP)
	$(call say,EMU)mkdir -p $(@D) && g++ -std=c++17 $(EMU_CPPFLAGS) $(EMU_OPT) -MMD -MP -c -o $@ $<
$(EMU)/runtime.o $(EMU)/memory.o: $(EMU)/%.o: tests/gpu/emulate/%.c $(STAMP)
	$(call say,EMU)mkdir -p $(@D) && $(CC) -std=c11 $(EMU_CPPFLAGS) $(EMU_OPT) -MMD -MP -c -o $@ $<
$(EMU)/libcublasLt.so.13: tests/gpu/emulate/cublaslt.c $(STAMP)
	$(call say,EMU)mkdir -p $(@D) && $(CC) -std=c11 -fPIC -shared $(EMU_CPPFLAGS) $(EMU_OPT) -o $@ $< -lm

# The unit tests of the kernels with the emulated card in the place of the fast CPU.
$(EMU)/test_%.o: tests/unit/kernels/test_%.c $(STAMP)
	$(call say,EMU)mkdir -p $(@D) && $(CC) -std=c11 $(EMU_CPPFLAGS) -DGUARD_DEVICE='"cuda:0"' $(EMU_OPT) \
	  -MMD -MP -c -o $@ $<
$(EMU)/test_%: $(EMU)/test_%.o $(EMU_OBJ) $(LIBS_kernels)
	$(call say,LD)g++ -o $@ $(filter %.o,$^) $(filter %.a,$^) $(filter-out -lcudart_static,$(LINK_kernels)) \
	  $(LINK_base) $(TESTLINK) -lm -lpthread
