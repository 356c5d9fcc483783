"""Read what a model wrote: thoughts, fields, values, calls of tools, and what is wrong with it."""
