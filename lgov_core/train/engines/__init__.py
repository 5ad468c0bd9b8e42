"""Engines on servers that a trainer keeps: vLLM, in a process and an environment of its own (`open_vllm`).

`vllm_server` starts and watches the process, `vllm_policy` publishes weights, `vllm_engine` is what the endpoint asks.
"""
