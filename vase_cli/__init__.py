"""VaSE CLI: run and study reasoning models with a small KV cache.

The method is value-aware stochastic KV cache eviction (arXiv 2606.03928).
"""

__version__ = "0.1.0"
