"""Rooms of the scripts at the top level. Each says first what would be different without it."""
