"""The engine without a model: it fills signatures by keyword statistics. No language model is in it."""
