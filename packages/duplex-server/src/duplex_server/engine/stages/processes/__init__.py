"""Stages whose workers are processes: what the ``torch`` and ``vllm`` runtimes have in common.

One worker process a replica, started, fed, watched and restarted from the server's event loop (:mod:`.pool`, :mod:`.replica`,
:mod:`.process`); frames on a socket between the two (:mod:`.messages`, :mod:`.framing`, :mod:`.payloads`, :mod:`.channel`);
and in the process a driver (:mod:`.driver`) that does the runtime's work (:mod:`.child` is its entry). Must never import torch
or vllm: only a driver does, in the worker process.
"""
