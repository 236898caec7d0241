"""The stages of MiniCPM-o 4.5: what loads torch, transformers or vLLM.

Owns: the checkpoint's reader and one module a stage. Called by: the workers of a stage, and the tests of the stages.
Never: is imported by the plugin or by the rules; imports a heavy library at the top of this file.
"""
