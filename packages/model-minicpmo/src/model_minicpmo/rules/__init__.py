"""The rules of this model, one pure function a file: a frozen snapshot goes in, a decision comes out."""
