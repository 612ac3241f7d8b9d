"""KV memory: the block pool, the ledger of leases, capacity arithmetic, and the storage."""
