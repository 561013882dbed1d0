"""Record batches and struct values as Arrow IPC messages.

What may change about their types is judged in `typeserializers.evolution`.
"""
