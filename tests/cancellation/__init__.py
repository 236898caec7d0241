"""Cancellation at every await: whatever public coroutine is cancelled wherever, the engine and the clients stay whole."""
