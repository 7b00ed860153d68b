# Exported folders in the real transformers, from PyPI, in a virtual environment of its own.
TRANSFORMERS = $(BUILD_DIR)/venv-transformers

.PHONY: check-transformers
check-transformers: all $(TOOLS) $(TRANSFORMERS)/.installed ## exported language models against transformers (downloads it once)
	SKERRY_BUILD=$(BUILD_DIR) $(TRANSFORMERS)/bin/python tests/reference/transformers_check.py

$(TRANSFORMERS)/.installed:
	$(PYTHON) -m venv $(TRANSFORMERS)
	$(TRANSFORMERS)/bin/pip -q install torch transformers safetensors numpy pillow
	touch $@
