"""Programs that may be hostile, run where they can harm nothing: ../README.md, How it works."""
