"""Kernels that compute on a GPU in few passes what the layers compute in many."""
