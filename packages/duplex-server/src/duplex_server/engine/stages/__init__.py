"""Stages: where they run (:mod:`.thread`) and how work reaches them (:mod:`.host`). Used by both halves of the engine."""
