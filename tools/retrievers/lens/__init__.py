"""The latent index: a model's notes on each document about an attribute."""
