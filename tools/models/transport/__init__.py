"""Clients of providers, over HTTP: connections, protocols, errors, and limits on rate and size."""
