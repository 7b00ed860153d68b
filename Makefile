# Skerry: one Makefile, no recursion.  `make help` lists what it can do.
BUILD ?= release
CUDA  ?= auto
V     ?= 0
BUILD_DIR ?= build
PREFIX ?= /usr/local
# CUDA's toolkit is looked for in its usual place, then by an nvcc on the PATH: one of CUDA 12 or newer
# with its headers beside it, which those of distributions and of conda often are not.
ifndef CUDA_HOME
NVCC_FOUND := $(if $(wildcard /usr/local/cuda/bin/nvcc),,$(realpath $(shell command -v nvcc)))
CUDA_HOME := $(if $(shell $(if $(NVCC_FOUND),$(NVCC_FOUND) --version | grep -E 'release (1[2-9]|[2-9][0-9])')),$(patsubst %/bin/nvcc,%,$(NVCC_FOUND)))
CUDA_HOME := $(or $(if $(wildcard $(CUDA_HOME)/include/cuda_runtime_api.h),$(CUDA_HOME)),/usr/local/cuda)
endif
CUDA_ARCHS ?= 80 90
ifeq ($(origin CC),default)
CC := gcc
endif
NVCC  ?= $(CUDA_HOME)/bin/nvcc
PROTOC_C ?= protoc-c
PYTHON ?= /usr/bin/python3

.SUFFIXES:
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

ifeq ($(CUDA),auto)
override CUDA := $(if $(wildcard $(NVCC)),1,0)
SAY_CUDA := $(if $(filter 0,$(CUDA)),@echo 'no nvcc at $(NVCC)$(if $(NVCC_FOUND), ($(NVCC_FOUND) is not of a whole toolkit of CUDA 12 or newer)): these programs cannot use GPUs (CUDA_HOME=DIR names a toolkit; CUDA=0 says that it is meant)')
endif
ifneq ($(filter-out 0 1,$(CUDA)),)
$(error CUDA must be auto, 0 or 1)
endif
ifneq ($(filter-out release debug asan tsan,$(BUILD)),)
$(error BUILD must be release, debug, asan or tsan)
endif

# Objects live in one tree per configuration; release binaries in build/bin/.
O   := $(BUILD_DIR)/$(BUILD)
GEN := $(BUILD_DIR)/gen
BIN := $(if $(filter release,$(BUILD)),$(BUILD_DIR)/bin,$(O)/bin)

# ---- flags -------------------------------------------------------------
WARN := -Wall -Wextra -Wpedantic -Wshadow -Wstrict-prototypes \
        -Wmissing-prototypes -Wpointer-arith -Wwrite-strings -Wvla -Wformat=2 \
        -Wundef -Wno-unused-parameter -Wno-missing-field-initializers
# Reports of sanitizers name functions and lines, which -g1 has.
OPT_release := -O2 -g -fno-omit-frame-pointer -D_FORTIFY_SOURCE=2 -fstack-protector-strong
OPT_debug   := -O0 -g3 -DSKERRY_FAULTS=1
SANITIZE    := -g1 -fno-omit-frame-pointer -DSKERRY_FAULTS=1 -DSKERRY_SANITIZED=1
OPT_asan    := $(SANITIZE) -fsanitize=address,undefined -fno-sanitize-recover=all
OPT_tsan    := $(SANITIZE) -DSKERRY_TSAN=1 -fsanitize=thread
# Under sanitizers only what computes, and what fuzzers enter most, is optimised: the rest compiles in a
# third of the time, and is looked at as it is written.  Unit tests of the release need not be fast.
OPTIMISED := kernels/% common/% $(patsubst %,worker/%/%,net model frozen fit train pipe)
LEVEL_asan = $(if $(filter $(OPTIMISED),$<),-O2,-O0)
LEVEL_tsan = $(LEVEL_asan)
LEVEL_release = $(if $(filter tests/unit/%,$<),-O1 -g1)
OPT := $(OPT_$(BUILD))
VERSION := $(shell cat VERSION 2>/dev/null || echo 0.0.0)

# CFLAGS, CPPFLAGS, LDFLAGS, LDLIBS belong to the user; ours are ALL_*.
# -ffp-contract=off: elementwise outer arithmetic gives the same bits everywhere.
PKGS := libuv libprotobuf-c libcurl gnutls libmicrohttpd sqlite3 jansson \
        yaml-0.1 vips libarchive libzstd libutf8proc expat
PKG_CFLAGS := $(patsubst -I%,-isystem %,$(shell pkg-config --cflags $(PKGS) 2>/dev/null))
ALL_CPPFLAGS := -I. -I$(GEN) -D_GNU_SOURCE -DHAVE_CUDA=$(CUDA) $(PKG_CFLAGS) \
                $(if $(filter 1,$(CUDA)),-isystem $(CUDA_HOME)/include) $(CPPFLAGS)
# WERROR=1 makes no other object, so it is not among the flags that rebuild.
ALL_CFLAGS   := -std=c11 $(OPT) -ffp-contract=off -fPIE -pthread $(WARN) $(CFLAGS)
ALL_LDFLAGS  := $(filter -fsanitize=% -fno-sanitize%,$(OPT)) -pie -pthread \
                -Wl,--as-needed -Wl,-z,relro,-z,now $(LDFLAGS)
ALL_LDLIBS   := -lm -lpthread $(LDLIBS)

pkg = $(shell pkg-config --libs $(1) 2>/dev/null)
LINK_common/base  := $(call pkg,gnutls)
LINK_common/st    := $(LINK_common/base) $(call pkg,jansson)
LINK_common/component := $(LINK_common/st)
LINK_common/job   := $(LINK_common/base) $(call pkg,yaml-0.1 jansson)
LINK_common/data  := $(LINK_common/base) $(call pkg,jansson vips libarchive libzstd libutf8proc)
LINK_proto        := $(call pkg,libprotobuf-c)
LINK_kernels      := $(LINK_common/base)
LINK_common/outer := $(LINK_common/st)
LINK_common/net   := $(call pkg,libuv libprotobuf-c libcurl gnutls libmicrohttpd jansson expat) $(LINK_common/base)
LINK_common/trainer := $(call pkg,libprotobuf-c) $(LINK_common/base)
LINK_coordinator  := $(LINK_common/net) $(LINK_common/data) $(LINK_common/job) $(call pkg,sqlite3)
LINK_worker        = $(LINK_common/net) $(LINK_common/data) $(LINK_common/job) $(LINK_kernels)
LINK_cli          := $(LINK_common/net) $(LINK_common/data) $(LINK_common/job)

ifeq ($(CUDA),1)
# No exceptions, RTTI or guarded statics: the objects link with plain cc.
GENCODE := $(foreach a,$(CUDA_ARCHS),-gencode arch=compute_$(a),code=sm_$(a)) \
  -gencode arch=compute_$(lastword $(CUDA_ARCHS)),code=compute_$(lastword $(CUDA_ARCHS))
ALL_NVCCFLAGS = -std=c++17 -O3 -lineinfo $(GENCODE) -Xcompiler \
  -Wall,-fPIE,-fno-exceptions,-fno-rtti,-fno-threadsafe-statics,-fno-omit-frame-pointer $(NVCCFLAGS)
LINK_kernels += $(addprefix -L,$(firstword $(wildcard $(CUDA_HOME)/lib64 $(CUDA_HOME)/lib))) -lcudart_static -ldl -lrt
endif

# $(call say,VERB) prints one quiet line for a recipe, unless V=1.
ifneq ($(V),1)
say = @printf '  %-6s %s\n' '$(1)' '$@';
endif

# ---- layers: an archive each; DEPS say what a layer may link -----------
# A layer is a folder, or a program with its rooms; tests/tools/check_layers.py knows the rooms.
LAYERS := common/base common/st common/component common/job common/data proto common/outer common/net common/trainer \
          kernels coordinator worker cli
DEPS_common/base  :=
DEPS_common/st    := common/base
DEPS_common/component := common/st common/base
DEPS_common/job   := common/base
DEPS_common/data  := common/base
DEPS_proto        :=
DEPS_common/outer := common/st common/base
DEPS_common/net   := proto common/base
DEPS_kernels      := common/base
DEPS_common/trainer := proto common/base
DEPS_coordinator  := common/outer common/net proto common/data common/job common/st common/base
DEPS_worker       := common/outer common/trainer common/net proto kernels common/data common/job common/component common/st common/base
DEPS_cli          := common/net proto common/data common/job common/component common/st common/base

DIRS_kernels      := kernels kernels/device kernels/cpu $(if $(filter 1,$(CUDA)),kernels/cuda kernels/cuda/lib)
DIRS_common/net   := common/net common/net/http common/net/s3
DIRS_coordinator   = coordinator $(wildcard coordinator/*/)
DIRS_worker        = worker $(wildcard worker/*/)
DIRS_cli           = cli $(wildcard cli/*/)
dirs = $(patsubst %/,%,$(or $(DIRS_$(1)),$(1)))

sources = $(filter-out %/main.c,$(foreach d,$(dirs),$(wildcard $(d)/*.c)))
# A *_vec.c has an object for each instruction set.
objects = $(foreach s,$(1),$(if $(filter %_vec.c,$(s)),$(foreach i,$(ISAS),$(s:.c=.$(i).o)),$(s:.c=.o)))
PROTO := $(wildcard proto/*.proto)
PB_C  := $(PROTO:%.proto=$(GEN)/%.pb-c.c)
PB_H  := $(PB_C:.c=.h)
CU    := $(if $(filter 1,$(CUDA)),$(wildcard kernels/cuda/*.cu))

lib = $(O)/lib$(subst /,-,$(1)).a
OBJ_proto   := $(PB_C:$(GEN)/%.c=$(O)/gen/%.o)
OBJ_coordinator := $(O)/gen/web_assets.o
# They do not depend on BUILD: one set serves all of them.
CUO := $(BUILD_DIR)/cuda
OBJ_kernels_cuda := $(patsubst kernels/cuda/%.cu,$(CUO)/%.cu.o,$(CU))
OBJ_kernels := $(OBJ_kernels_cuda)

PROGRAMS := coordinatord workerd skerry
MAIN_coordinatord := coordinator
MAIN_workerd      := worker
MAIN_skerry       := cli
BINS := $(PROGRAMS:%=$(BIN)/%)

##@ Build
.PHONY: all help
all: $(BINS) ## build coordinatord, workerd and skerry into build/bin
	$(SAY_CUDA)

help: ## this list
	@echo 'make TARGET [BUILD=release|debug|asan|tsan] [CUDA=auto|0|1] [CC=gcc|clang] [WERROR=1] [V=1]'
	@sed -nE -e 's/^##@ (.*)/\n\1/p' -e 's/^([a-z][a-z0-9-]*):.*## (.*)/  \1\t\2/p' \
	  $(filter-out %.d,$(MAKEFILE_LIST)) | expand -t 22

# ---- rules -------------------------------------------------------------
# A changed flag rebuilds what it touches, as a changed source does.
STAMP := $(O)/.flags
CU_CPPFLAGS := -I. -D_GNU_SOURCE $(CPPFLAGS)
CU_FLAGS := $(NVCC) $(CU_CPPFLAGS) $(ALL_NVCCFLAGS)
# COVERED=1 tells fuzzers which lines an input reaches; not in kernels and tests, which no fuzzer enters.
COVER = $(if $(COVERED),$(if $(filter kernels/% tests/unit/%,$<),,-fsanitize=fuzzer-no-link))
FLAGS := $(CC) $(ALL_CPPFLAGS) $(ALL_CFLAGS) $(value LEVEL_$(BUILD)) $(OPTIMISED) $(COVERED) $(ALL_LDFLAGS) $(ALL_LDLIBS) $(VERSION)
ALL_CFLAGS += $(if $(WERROR),-Werror)
ifneq ($(filter-out clean help deps,$(or $(MAKECMDGOALS),all)),)
$(shell mkdir -p $(O); printf '%s\n' '$(FLAGS)' | cmp -s - $(STAMP) || printf '%s\n' '$(FLAGS)' >$(STAMP))
ifeq ($(CUDA),1)
$(shell mkdir -p $(CUO); printf '%s\n' '$(CU_FLAGS)' | cmp -s - $(CUO)/.flags || printf '%s\n' '$(CU_FLAGS)' >$(CUO)/.flags)
endif
endif

$(GEN)/%.pb-c.c $(GEN)/%.pb-c.h &: %.proto
	$(call say,PROTO)mkdir -p $(GEN) && $(PROTOC_C) --c_out=$(GEN) $<

# The dashboard is linked into coordinatord.
$(GEN)/web_assets.c: coordinator/http/web_assets.sh $(wildcard coordinator/http/web/*)
	$(call say,WEB)mkdir -p $(GEN) && coordinator/http/web_assets.sh $(sort $(wildcard coordinator/http/web/*)) >$@

# A file named *_vec.c is built once for each instruction set and reached only through
# run-time dispatch (kernels/cpu/cpu.c); one named *_avx2.c, *_avx512.c or *_amx.c for that one.  Under sanitizers
# -O3 would more than double the time that they take to compile.
ISAS := avx2 avx512 avx512bf16
FASTER := $(if $(filter asan tsan,$(BUILD)),,-O3)
ISA_avx2 := $(FASTER) -mavx2 -mfma -mf16c
ISA_avx512 := $(FASTER) -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx2 -mfma -mf16c -mprefer-vector-width=512
ISA_avx512bf16 := $(ISA_avx512) -mavx512bf16
ISA_amx := $(ISA_avx512bf16) -mamx-tile -mamx-bf16
isa = $(foreach i,$(ISAS) amx,$(if $(filter %_$(i).c,$(1)),$(ISA_$(i))))

COMPILE = mkdir -p $(@D) && $(CC) $(ALL_CPPFLAGS) -DSKERRY_VERSION='"$(VERSION)"' $(ALL_CFLAGS) $(LEVEL_$(BUILD))
$(O)/%.o: %.c $(STAMP) | $(PB_H)
	$(call say,CC)$(COMPILE) $(COVER) $(call isa,$<) -MMD -MP -c -o $@ $<

define vec
$(O)/%_vec.$(1).o: %_vec.c $(STAMP)
	$$(call say,CC)$$(COMPILE) $(ISA_$(1)) -DISA=$(1) -DISA_BITS=$(if $(filter avx2,$(1)),256,512) -MMD -MP -c -o $$@ $$<
endef
$(foreach i,$(ISAS),$(eval $(call vec,$(i))))

$(O)/gen/%.o: $(GEN)/%.c $(STAMP)
	$(call say,CC)mkdir -p $(@D) && $(CC) $(ALL_CPPFLAGS) -std=c11 $(OPT) -fPIE -w -MMD -MP -c -o $@ $<

# Code that no other card runs.
$(CUO)/attention_hopper.cu.o: GENCODE := -gencode arch=compute_90a,code=sm_90a
# What ptxas says of each kernel stays beside the object, for check-cuda.
$(CUO)/%.cu.o: kernels/cuda/%.cu $(CUO)/.flags
	$(call say,NVCC)$(NVCC) $(CU_CPPFLAGS) $(ALL_NVCCFLAGS) -Xptxas -v -MMD -MP -MF $(@:.o=.d) -c -o $@ $< \
	  2>$(@:.o=.log) || { cat $(@:.o=.log); exit 1; }

define layer
OBJ_$(1) += $$(addprefix $$(O)/,$$(call objects,$$(call sources,$(1))))
$$(call lib,$(1)): $$(OBJ_$(1))
	$$(call say,AR)rm -f $$@ && $$(AR) rcsD $$@ $$^
LIBS_$(1) := $$(call lib,$(1)) $$(foreach d,$$(DEPS_$(1)),$$(call lib,$$d))
# tests/unit/LAYER/test_X.c links LAYER and what lies below it, nothing else.
$$(O)/tests/unit/$(1)/%: $$(O)/tests/unit/$(1)/%.o $$(LIBS_$(1)) | $$(O)/tests/.links
	$$(call say,LD)$$(CC) $$(ALL_LDFLAGS) -o $$@ $$^ $$(LINK_$(1)) $$(TESTLINK) $$(ALL_LDLIBS)
$$(O)/tests/bench/$(1)/%: $$(O)/tests/bench/$(1)/%.o $$(LIBS_$(1)) | $$(O)/tests/.links
	$$(call say,LD)$$(CC) $$(ALL_LDFLAGS) -o $$@ $$^ $$(LINK_$(1)) $$(TESTLINK) $$(ALL_LDLIBS)
$$(O)/tests/tools/$(1)/%: $$(O)/tests/tools/$(1)/%.o $$(LIBS_$(1))
	$$(call say,LD)$$(CC) $$(ALL_LDFLAGS) -o $$@ $$^ $$(LINK_$(1)) $$(ALL_LDLIBS)
$$(O)/fuzz/$(1)/%: tests/fuzz/$(1)/%.c $$(LIBS_$(1))
	$$(call say,FUZZ)mkdir -p $$(@D) && $$(CC) $$(ALL_CPPFLAGS) $$(ALL_CFLAGS) -fsanitize=fuzzer \
	  $$(ALL_LDFLAGS) -o $$@ $$^ $$(LINK_$(1)) $$(ALL_LDLIBS)
endef
# Unit tests are hundreds of programs: lld links them in a fifth of the time.  What compares with oneDNN
# (tests/bench/kernels/floor.h) links it.
TESTLINK = -fuse-ld=lld $(or $(call pkg,cmocka),-lcmocka) -ldnnl -lgomp
$(O)/tests/.links:
	@mkdir -p $(@D); echo 'int main(void) { return 0; }' | $(CC) -x c - -o $@ $(TESTLINK) 2>$@.log || { cat $@.log; \
	  echo 'unit tests and benchmarks need cmocka, oneDNN, libgomp and lld: install what is missing with `make deps`' >&2; exit 1; }
$(foreach l,$(LAYERS),$(eval $(call layer,$(l))))

define program
$$(BIN)/$(1): $$(O)/$(MAIN_$(1))/main.o $$(LIBS_$(MAIN_$(1)))
	$$(call say,LD)mkdir -p $$(@D) && $$(CC) $$(ALL_LDFLAGS) -o $$@ $$^ $$(LINK_$(MAIN_$(1))) $$(ALL_LDLIBS)
endef
$(foreach p,$(PROGRAMS),$(eval $(call program,$(p))))

# ---- libskerry: what a trainer links, without anything else of ours -----
# Position-independent objects of a tree of their own; only what skerry.h names is to be seen.  What
# was built with an older skerry.h whose structs are others finds another name (as in _lib.py).
SKERRY_SRC := libskerry/skerry.c common/trainer/channel.c common/base/err.c common/base/mem.c common/base/str.c
SKERRY_OBJ := $(SKERRY_SRC:%.c=$(O)/pic/%.o) $(O)/pic/gen/proto/trainer.pb-c.o
SKERRY_LIBS := $(O)/libskerry.a $(O)/libskerry.so
SKERRY_SONAME := libskerry.so.2
PIC := -fPIC -fvisibility=hidden

$(O)/pic/%.o: %.c $(STAMP) | $(PB_H)
	$(call say,CC)$(COMPILE) $(PIC) -MMD -MP -c -o $@ $<
$(O)/pic/gen/%.o: $(GEN)/%.c $(STAMP)
	$(call say,CC)mkdir -p $(@D) && $(CC) $(ALL_CPPFLAGS) -std=c11 $(OPT) $(PIC) -w -MMD -MP -c -o $@ $<
$(O)/libskerry.a: $(SKERRY_OBJ)
	$(call say,AR)rm -f $@ && $(AR) rcsD $@ $^
$(O)/libskerry.so: $(SKERRY_OBJ)
	$(call say,LD)$(CC) -shared $(filter-out -pie,$(ALL_LDFLAGS)) -Wl,-soname,$(SKERRY_SONAME) -o $@ $^ \
	  -Wl,-Bstatic $(LINK_proto) -Wl,-Bdynamic -Wl,--exclude-libs,ALL $(ALL_LDLIBS)

# The example of a trainer in C, as a user would build it.
$(BUILD_DIR)/examples/trainer-c: examples/trainer-c/trainer.c $(O)/libskerry.a libskerry/skerry.h
	$(call say,LD)mkdir -p $(@D) && $(CC) -I. $(CFLAGS) -O2 $(WARN) -o $@ $< $(O)/libskerry.a \
	  $(LINK_proto) -lm

# The Python package with the library in it, to be imported from build/python or installed as a wheel.
PYTHON_FILES := $(wildcard python/skerry/*)
$(BUILD_DIR)/python/.made: $(PYTHON_FILES) $(O)/libskerry.so python/wheel.py
	$(call say,PYTHON)rm -rf $(@D) && mkdir -p $(@D)/skerry && cp $(PYTHON_FILES) $(O)/libskerry.so $(@D)/skerry/ && \
	  $(PYTHON) python/wheel.py $(@D) $(VERSION) $(@D) && touch $@
.PHONY: python
python: $(BUILD_DIR)/python/.made ## the Python package of trainers, as a wheel in build/python

.PHONY: libskerry
libskerry: $(SKERRY_LIBS) ## the library of trainers, static and shared
all: libskerry

.PHONY: deps install deb check-deb check-systems clean
deps: ## install what building, the demo and the tests need (Debian 12; others: deploy/install-deps.sh demo)
	deploy/install-deps.sh test

install: $(BINS) $(SKERRY_LIBS) ## install programs, libskerry and its header under PREFIX (default /usr/local)
	install -D -t $(DESTDIR)$(PREFIX)/bin $(BINS)
	install -d $(DESTDIR)$(PREFIX)/share/bash-completion/completions
	$(BIN)/skerry completion bash >$(DESTDIR)$(PREFIX)/share/bash-completion/completions/skerry
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/include/libskerry libskerry/skerry.h
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/lib $(SKERRY_LIBS)
	ln -sf libskerry.so $(DESTDIR)$(PREFIX)/lib/$(SKERRY_SONAME)

deb: $(BINS) ## a Debian package of the three programs and their units, in build/
	deploy/make-deb.sh $(BIN) $(BUILD_DIR)
	$(SAY_CUDA)

check-deb: deb ## install the package in a fresh Debian (root, debootstrap, network) and train there
	deploy/check-deb.sh $(BUILD_DIR)/skerry_$(VERSION)_$$(dpkg --print-architecture).deb $(BUILD_DIR)/debian-system

check-systems: ## build the package on Debian 13 and Ubuntu 24.04, install it there, and train (root, debootstrap, network)
	for s in trixie noble; do deploy/check-deb.sh . $(BUILD_DIR)/system-$$s $$s || exit 1; done

clean: ## remove build/
	rm -rf $(BUILD_DIR)

# ---- the rest, by what it is for: later files use what earlier ones define ----
include $(addprefix tests/,test.mk sim.mk load.mk fault.mk fuzz.mk lint.mk demo.mk bench.mk house.mk emulated.mk gpu.mk)

.SECONDARY:
-include $(shell find $(O) $(CUO) -name '*.d' 2>/dev/null)
