"""Compares serializers with their peers: records, scalars, containers and migration, in time per value."""
