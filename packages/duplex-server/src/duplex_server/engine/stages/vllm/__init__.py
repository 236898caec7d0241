"""The ``vllm`` runtime's work in its worker process: one resumable request a session on a vLLM engine.

:mod:`.driver` is what the process runs, :mod:`.session` works on one session's requests, :mod:`.ledger` knows what a session's
context holds and :mod:`.memory` what the engine's KV cache does; these know nothing of vLLM's insides. :mod:`.platform` alone
does: processes, devices, model runners, with :mod:`.tap`, which watches the engine's steps, and :mod:`.plugin`, by which the
engine's process finds the model's class. Nothing here is imported by the server's own process.
"""
