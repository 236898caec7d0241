"""Tests on the tree itself: budgets, boundaries, what files must not say, and that every command is documented."""
