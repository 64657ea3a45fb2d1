"""Text of an answer -> equal or not. The design is in answers/README.md."""
