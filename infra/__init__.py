"""Loading, sharding, caching, checkpoints, flags: what the scripts at the top level stand on."""
