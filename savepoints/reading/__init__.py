"""Looking into stored state: where it lies, what its types are, its entries as values, and figures about them.

Nothing here needs the classes of the program that wrote the state: a snapshot restores a serializer that reads its
bytes, and records come as stand-ins that have the same fields. Nothing here writes.
"""
