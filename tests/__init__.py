"""Tests that span packages, and what the tests of all packages share (`tests.support`)."""
