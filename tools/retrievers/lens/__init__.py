"""The latent index: what a model writes down of each document about one attribute."""
