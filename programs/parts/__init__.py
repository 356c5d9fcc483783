"""What programs share: pools, rewriting, solutions, compiled prompts, ensembles."""
