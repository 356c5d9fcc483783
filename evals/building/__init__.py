"""How benchmarks are made of a corpus: a file a recipe, and what recipes share."""
