# make demo: from a clean clone to a picture.
DEMO := $(BUILD_DIR)/demo

##@ Try
.PHONY: demo demo-data
demo: ## set up, build, train on emoji with three workers (one is killed midway), show samples
	@deploy/install-deps.sh demo
	@$(MAKE) --no-print-directory all demo-data
	@$(BUILD_DIR)/bin/skerry run deploy/demo/emoji.yaml --workers 3 --drill 12 --out $(DEMO)/out

demo-data: $(BUILD_DIR)/bin/emoji-dataset
	@test -f $(DEMO)/emoji/.complete || { rm -rf $(DEMO)/emoji && mkdir -p $(DEMO) && \
	  $(BUILD_DIR)/bin/emoji-dataset $(DEMO)/emoji 64 && touch $(DEMO)/emoji/.complete; }

$(BUILD_DIR)/bin/emoji-dataset: deploy/demo/emoji.c $(STAMP)
	$(call say,CC)mkdir -p $(@D) && $(CC) $(ALL_CPPFLAGS) $(ALL_CFLAGS) $(ALL_LDFLAGS) -o $@ $< $(call pkg,vips) $(ALL_LDLIBS)

# The examples, each from a clean clone to its results.
EXAMPLES := $(BUILD_DIR)/examples

.PHONY: example-diloco example-ddm example-dipaco example-cascade example-cascade-ddm example-latents example-trainer
example-diloco: all demo-data ## run examples/diloco-emoji.yaml
	$(BUILD_DIR)/bin/skerry run examples/diloco-emoji.yaml --workers 2 --out $(EXAMPLES)/diloco

example-ddm: all demo-data ## run examples/ddm-emoji.yaml
	$(BUILD_DIR)/bin/skerry run examples/ddm-emoji.yaml --workers 2 --strategies full,top1 --out $(EXAMPLES)/ddm

example-dipaco: all $(EXAMPLES)/text/train.jsonl ## run examples/dipaco-text.yaml
	$(BUILD_DIR)/bin/skerry run examples/dipaco-text.yaml --workers 2 --out $(EXAMPLES)/dipaco

example-cascade: all demo-data ## run examples/cascade-emoji.yaml
	$(BUILD_DIR)/bin/skerry run examples/cascade-emoji.yaml --workers 2 --out $(EXAMPLES)/cascade

example-cascade-ddm: all demo-data ## run examples/cascade-ddm-emoji.yaml
	$(BUILD_DIR)/bin/skerry run examples/cascade-ddm-emoji.yaml --workers 2 --out $(EXAMPLES)/cascade-ddm

example-trainer: all $(BUILD_DIR)/examples/trainer-c $(EXAMPLES)/text/train.jsonl ## run examples/trainer-c.yaml: a program of the user's
	mkdir -p $(EXAMPLES)/program && cp $(BUILD_DIR)/examples/trainer-c $(EXAMPLES)/program
	$(BUILD_DIR)/bin/skerry run examples/trainer-c.yaml --workers 2 --out $(EXAMPLES)/trainer

$(EXAMPLES)/text/train.jsonl: examples/text-data.py
	$(PYTHON) examples/text-data.py $(@D)

ENCODERS := $(EXAMPLES)/latents/encoders

example-latents: all $(ENCODERS)/model_index.json ## run examples/latents-emoji.yaml
	$(BUILD_DIR)/bin/skerry run examples/latents-emoji.yaml --workers 2 --out $(EXAMPLES)/latents

$(ENCODERS)/model_index.json: examples/latents_data.py tests/tools/frozen_models.py | demo-data
	$(PYTHON) examples/latents_data.py $(DEMO)/emoji $(@D)
