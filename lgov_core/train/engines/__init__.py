"""Engines on servers that a trainer keeps: vLLM, in a process and an environment of its own (`open_vllm`).

`vllm_server` starts and watches the process (`vllm_attached`: another's), `vllm_policy` publishes adapters and
`vllm_weights` all weights, `vllm_engine` is what the endpoint asks;
`policy_engine` is the embedded engine with several policies.
"""
