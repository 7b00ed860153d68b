# Training steps on the emulated card: plain, and as graphs.  Its cuBLASLt is a library that
# asks the program to keep its work while a graph is recorded, hence -rdynamic.
ifeq ($(CUDA),1)

$(EMU)/test_step.o: tests/gpu/emulate/test_step.c $(STAMP)
	$(call say,EMU)mkdir -p $(@D) && gcc -std=c11 $(EMU_CPPFLAGS) $(EMU_FLAGS) -MMD -MP -c -o $@ $<
$(EMU)/test_step: $(EMU)/test_step.o $(EMU_OBJ) $(LIBS_worker)
	$(call say,LD)g++ -rdynamic -o $@ $(filter %.o,$^) $(filter %.a,$^) $(filter-out -lcudart_static,$(LINK_worker)) \
	  $(TESTLINK) -lm -lpthread

.PHONY: check-step-emulated
check-emulated: check-step-emulated
check-step-emulated: $(EMU)/test_step $(EMU)/libcublasLt.so.13
	@SKERRY_CUDA_PROBE=1 LD_LIBRARY_PATH=$(EMU) $(EMU)/test_step

endif
