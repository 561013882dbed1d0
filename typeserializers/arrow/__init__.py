"""Record batches and struct values as Arrow IPC messages, and what may change about their types."""
