"""From the text of an answer to equal or not: what stands behind verify.py."""
