"""All access to language models: model names, prices, stored answers, and transport."""
