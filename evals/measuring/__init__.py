"""From recorded outcomes to figures."""
