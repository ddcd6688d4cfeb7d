"""Workloads, comparisons and measured results for legroom."""
