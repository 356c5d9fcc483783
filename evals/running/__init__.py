"""From a request to recorded outcomes."""
