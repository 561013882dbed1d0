"""Metrics, events and reports of a running job."""
