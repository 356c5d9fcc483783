"""A request on its way to a provider: connection, protocol, what went wrong, and how many at
a time.
"""
