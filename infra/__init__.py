"""Loading, sharding, caching, checkpoints and flags for the scripts at the top level."""
