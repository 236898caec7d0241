"""Whole conversations with the embedded default model, over a real socket, with real speech."""
