"""The parts that the cascade is made of: recogniser, language models, voices, and the splitter between the last two.

Owns: nothing but their names; each part is one module, and ``weights`` finds what they load. Called by: the cascade's
stages, each of which imports the one part that it runs. Never: imports a part (numpy, onnxruntime, xllamacpp, gruut and
httpx load with the module that needs them), knows what a session is, or touches an event loop.

========================== ==========================================================================================
module                     what it holds
========================== ==========================================================================================
``recognizer``             :class:`~model_cascade.parts.recognizer.Recognizer`: speech in, text out
``language_model``         the protocol of a language model, what it is asked and what it answers
``local_language_model``   SmolLM2-135M in this process
``chat_endpoint``          any OpenAI-compatible chat endpoint
``tool_calls``             how a model without native tools is told of them, and how its calls are read
``clauses``                text deltas in, speakable clauses out
``voices``                 the protocol of a voice, the two voices, and what they share
``weights``                where weights lie and which they must be
``errors``                 what any of them raises
========================== ==========================================================================================

Every constructor and every method computes in the calling thread: call them from a worker thread. Two threads may use
one part at the same time; where the library underneath cannot, the part takes them one after the other.
"""
