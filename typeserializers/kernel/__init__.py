"""The contract of every serializer, generated code, references, and the registry of type hints."""
