# The coordinator in worlds of chance: tests/sim/sim.h.
##@ Simulate
EVENTS ?= 250000
SEED ?= 1
SIM := $(O)/tests/sim/sim
SIM_OBJ := $(patsubst %.c,$(O)/%.o,$(wildcard tests/sim/*.c))
SIM_WRAP := fsync syncfs link rename unlink blob_dir_open clock_wall_ms clock_gettime pthread_create \
  pthread_join pthread_cond_wait pthread_cond_timedwait pthread_cond_broadcast

# What tests/sim defines comes first, so that the archives' own files of that are left out.
$(SIM): $(SIM_OBJ) $(LIBS_coordinator)
	$(call say,LD)$(CC) $(ALL_LDFLAGS) $(SIM_WRAP:%=-Wl,--wrap=%) -o $@ $^ $(LINK_coordinator) $(ALL_LDLIBS)

.PHONY: sim
sim: $(SIM) ## the coordinator through EVENTS events of chance from SEED on (SIMFLAGS=-v: tell all)
	$(SIM) -e $(EVENTS) -s $(SEED) $(SIMFLAGS)

.PHONY: sim-life
sim-life: $(SIM) ## what one coordinator holds after MINUTES=60 of workers that come and go, and after a third of that (SEED=1)
	$(SIM) -m $(MINUTES) -s $(SEED) $(SIMFLAGS)
