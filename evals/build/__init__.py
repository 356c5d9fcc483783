"""The command evals.build; what it does is in evals/building."""
