"""The cascade's stages: what runs on worker threads and holds the weights. Loaded when a stage starts, never before."""
