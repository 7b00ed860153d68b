# The examples, each from a clean clone to its results.
EXAMPLES := $(BUILD_DIR)/examples

.PHONY: example-diloco example-ddm example-dipaco
example-diloco: all demo-data ## run examples/diloco-emoji.yaml
	$(BUILD_DIR)/bin/skerry run examples/diloco-emoji.yaml --workers 2 --out $(EXAMPLES)/diloco

example-ddm: all demo-data ## run examples/ddm-emoji.yaml
	$(BUILD_DIR)/bin/skerry run examples/ddm-emoji.yaml --workers 2 --strategies full,top1 --out $(EXAMPLES)/ddm

example-dipaco: all $(EXAMPLES)/text/train.jsonl ## run examples/dipaco-text.yaml
	$(BUILD_DIR)/bin/skerry run examples/dipaco-text.yaml --workers 2 --out $(EXAMPLES)/dipaco

$(EXAMPLES)/text/train.jsonl: examples/text-data.py
	$(PYTHON) examples/text-data.py $(@D)
