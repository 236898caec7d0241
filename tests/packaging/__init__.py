"""Tests of the packages as they are shipped: sdists and wheels, installed into fresh environments."""
