# Fuzzing with libFuzzer: tests/fuzz/LAYER/fuzz_X.c, starting from the files in
# tests/fuzz/LAYER/seeds/fuzz_X/ if there are any.  They are linked from the
# objects of check-asan, which have coverage; what was found is kept there.
FUZZ_SECONDS ?= 60
FUZZ ?=
FUZZ_BINS = $(patsubst tests/fuzz/%.c,$(O)/fuzz/%,$(sort $(shell find tests/fuzz -name 'fuzz_$(or $(FUZZ),*).c')))

# Of a whole coordinator: in the world of tests/sim, whose own files come first (sim.mk).
FUZZ_WORLDS := $(addprefix $(O)/fuzz/coordinator/,rpc/fuzz_service http/fuzz_command http/fuzz_login http/fuzz_ranges state/fuzz_rows)
$(FUZZ_WORLDS): $(O)/fuzz/%: tests/fuzz/%.c $(filter-out %/main.o,$(SIM_OBJ)) $(LIBS_coordinator)
	$(call say,FUZZ)mkdir -p $(@D) && $(CC) $(ALL_CPPFLAGS) -DSKERRY_VERSION='"$(VERSION)"' $(ALL_CFLAGS) \
	  -fsanitize=fuzzer $(ALL_LDFLAGS) $(SIM_WRAP:%=-Wl,--wrap=%) -o $@ $^ $(LINK_coordinator) $(ALL_LDLIBS)

# Each of its inputs is a life of a coordinator: of those that were found 64 are tried again.
FUZZ_LIVES := $(filter %/fuzz_service %/fuzz_command %/fuzz_rows,$(FUZZ_WORLDS))

.PHONY: fuzz fuzz-run
fuzz: ## run every fuzzer for FUZZ_SECONDS (default 60); FUZZ=st runs only that one
	+@$(WITH_ASAN) fuzz-run

# As many at a time as make has jobs.
FUZZED = $(FUZZ_BINS:%=%.run)
.PHONY: $(FUZZED)
fuzz-run: $(FUZZED)
	@[ -n '$(FUZZ_BINS)' ] || { echo 'no tests/fuzz/*/fuzz_$(FUZZ).c'; exit 1; }
$(FUZZED): %.run: %
	@name=$(<:$(O)/fuzz/%=%); found=$(O)/found/$$name; mkdir -p $$found; \
	  seeds=tests/fuzz/$$(dirname $$name)/seeds/$$(basename $$name); \
	  [ -d $$seeds ] || seeds=; \
	  $(if $(filter $<,$(FUZZ_LIVES)),(cd $$found && ls -t | tail -n +65 | xargs -r rm -f);) \
	  $< -max_total_time=$(FUZZ_SECONDS) -timeout=10 -rss_limit_mb=2048 -max_len=65536 \
	    -verbosity=0 -print_final_stats=1 -artifact_prefix=$(O)/found/crash- $$found $$seeds \
	    >$$found.log 2>&1 || { tail -40 $$found.log; echo "FAILED: $$name"; exit 1; }; \
	  printf '== %s, %s s\n%s\n' $$name $(FUZZ_SECONDS) \
	    "$$(grep -E 'number_of_executed_units|peak_rss' $$found.log)"
