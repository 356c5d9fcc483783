"""Single tasks for a language model: judge relevance, explain a loss, write an objective, annotate texts."""
