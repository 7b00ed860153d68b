# Real daemons and what happens to machines: tests/fault, docs/chaos.md.
MINUTES ?= 60
SHIM := $(O)/tests/fault/shim.so
$(SHIM): tests/fault/shim.c $(STAMP)
	$(call say,CC)mkdir -p $(@D) && $(CC) -std=c11 -D_GNU_SOURCE -O2 -fPIC -shared $(WARN) $(if $(WERROR),-Werror) -o $@ $<

# workerd, but for what it contributes, or for how long its steps last.
POISON := $(O)/tests/fault/poison
PACED := $(O)/tests/fault/paced
$(POISON): WRAPPED = contribution_write
$(PACED): WRAPPED = island_trainer_step
$(POISON) $(PACED): $(O)/tests/fault/%: $(O)/tests/fault/%.o $(O)/worker/main.o $(LIBS_worker)
	$(call say,LD)$(CC) $(ALL_LDFLAGS) -Wl,--wrap=$(WRAPPED) -o $@ $^ $(LINK_worker) $(ALL_LDLIBS)

.PHONY: chaos
chaos: all $(SHIM) ## a swarm through MINUTES=60 of kills, cuts, slow and full disks, in namespaces of its own (SEED=1)
	@$(PYTHON) tests/fault/chaos.py --build $(BUILD_DIR) --minutes $(MINUTES) --seed $(SEED)
check-int: $(SHIM) # for wrong clocks
