"""The causal study on the toy: runs, the credit of tokens, its truth, tables and pictures."""
