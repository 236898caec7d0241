"""Tests of the clients that span packages, and what the client's own tests need: a scripted server."""
