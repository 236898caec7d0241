"""The ``torch`` runtime: workers with slots that compute all that is due in one batched step.

:mod:`.slots` decides what is due and keeps the books, and :mod:`.driver` calls the worker. Neither imports torch: only what a
stage's factory returns does.
"""
