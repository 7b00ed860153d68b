# A coordinator and thousands of workers: tests/load.
FLEET := $(O)/tests/load/fleet
$(FLEET): $(O)/tests/load/fleet.o $(LIBS_common/net)
	$(call say,LD)$(CC) $(ALL_LDFLAGS) -o $@ $^ $(LINK_common/net) $(ALL_LDLIBS)
check-int: $(FLEET)

.PHONY: load
load: all $(FLEET) ## what WORKERS=2000 cost a coordinator, idle and busy, over TLS: build/figures/load.json (SECONDS=30)
	@$(PYTHON) tests/load/load.py --build $(BUILD_DIR) --workers $(or $(WORKERS),2000) --seconds $(or $(SECONDS),30)
