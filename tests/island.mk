# The communicator of cards against a library of NCCL's entries (tests/gpu/emulate/nccl.c).
ifeq ($(CUDA),1)

NCCL_TEST := $(O)/emulate-nccl
NCCL_SRC := kernels/comm.c kernels/comm_local.c kernels/cuda/comm_nccl.c kernels/cuda/lib.c \
            tests/gpu/emulate/fake_cards.c tests/unit/kernels/test_comm.c

$(NCCL_TEST)/libnccl.so.2: tests/gpu/emulate/nccl.c $(STAMP)
	$(call say,CC)mkdir -p $(@D) && $(CC) $(ALL_CPPFLAGS) $(ALL_CFLAGS) -fPIC -shared -o $@ $<
$(NCCL_TEST)/test_comm: $(NCCL_SRC) kernels/comm.h kernels/comm_impl.h kernels/cuda/cuda.h $(LIBS_common/base)
	$(call say,CC)mkdir -p $(@D) && $(CC) $(ALL_CPPFLAGS) $(ALL_CFLAGS) -DCOMM_CARDS=1 \
	  -Ddevice_open=fake_card_open -Ddevice_close=fake_card_close -Ddevice_cards=fake_cards \
	  $(ALL_LDFLAGS) -o $@ \
	  $(NCCL_SRC) $(filter %.a,$^) $(LINK_common/base) $(TESTLINK) $(ALL_LDLIBS) -ldl

.PHONY: check-nccl
check-nccl: $(NCCL_TEST)/test_comm $(NCCL_TEST)/libnccl.so.2 ## NCCL's host logic against a stand-in (needs nvcc, no card)
	@LD_LIBRARY_PATH=$(NCCL_TEST) $(NCCL_TEST)/test_comm
check-emulated: check-nccl

endif
