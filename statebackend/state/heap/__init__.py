"""The heap state backend: objects in dicts, with copy-on-write snapshots."""
