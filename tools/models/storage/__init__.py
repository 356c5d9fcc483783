"""Storage of model calls: the cache of responses, the ledger, and the requests that they answer."""
