"""Async I/O: requests to other systems that are under way while records go on, and their results in a defined order.

What may be emitted when is a table without asyncio (`stream_element_queue`); coroutines run in a loop of the process
(`requests`, `worker_loop`), and the operator stands between the two.
"""
