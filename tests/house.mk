# The figures of the house: what a reader meets, how much of it, and that the bits are as before.
.PHONY: house
house: all ## the figures of the house, into build/figures/house.json
	@$(PYTHON) tests/house/house.py
