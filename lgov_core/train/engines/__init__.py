"""Engines of a trainer, such as vLLM in a process and an environment of its own (`open_vllm`).

`vllm_server` starts and watches the process, `vllm_policy` publishes weights, `vllm_engine` has what the endpoint asks.
"""
