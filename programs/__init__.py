"""From a program to passed or not: the reward of programming problems, in a sandbox."""
