"""One reader per public form of a data set. Readers check what they read; they decide nothing about tasks."""
